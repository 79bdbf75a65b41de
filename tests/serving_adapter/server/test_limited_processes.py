"""Where the system limits processes and threads: a change that needs more is refused, and nobody is lost."""

import asyncio
import errno
import os
import re
import subprocess

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.thread_room import try_threads
from tests.serving_adapter.server.test_faults import answer_of, load_request, override, request_of
from tests.support.servers.running_server import start

MOST_THREADS = 64  # of which a server of two workers has about 20
SOME_USER = "23451"
READS_ALL = "+dac_override,+dac_read_search"
AS_ANOTHER = ["setpriv", "--reuid", SOME_USER, "--inh-caps", READS_ALL, "--ambient-caps", READS_ALL]
AS_ANOTHER += ["--clear-groups"]


@pytest.fixture(scope="module")
def limited():
    """A command that runs another one with few threads; the system's own user is not limited."""
    command = AS_ANOTHER if os.getuid() == 0 else ["unshare", "--user", "--map-root-user"]
    command = [*command, "prlimit", f"--nproc={MOST_THREADS}"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user can limit nobody")
    return command


@pytest.fixture(scope="module")
def stub(limited):
    server = start("--model", "noop", "--instances", 2, "--intra-op-threads", 1, before=limited)
    with server.process:
        with grpc.insecure_channel(server.address) as channel:
            yield GRPCInferenceServiceStub(channel)
        assert server.stop() == 0


@pytest.mark.parametrize("wanted", [{"instances": 2, "intra": 64}, {"instances": 32, "intra": 4}])
def test_more_threads_than_there_may_be_are_refused_and_the_workers_serve_on(stub, wanted):
    with pytest.raises(grpc.RpcError) as refused:
        stub.RepositoryModelLoad(load_request("noop", override(**wanted)), timeout=60)
    assert "threads more, and the system lets this user start only" in refused.value.details()
    config = stub.ModelConfig(pb.ModelConfigRequest(name="noop")).config
    assert config.instance_group[0].count == 2
    assert config.parameters["INTRA_OP_THREAD_COUNT"].string_value == "1"
    for i in range(4):
        assert answer_of(stub.ModelInfer(request_of("noop", i), timeout=20)) == i


def test_threads_that_there_may_be_are_put_in_force(stub):
    stub.RepositoryModelLoad(load_request("noop", override(instances=2, intra=2)), timeout=60)
    assert answer_of(stub.ModelInfer(request_of("noop", 1), timeout=20)) == 1


def test_a_server_with_more_threads_than_there_may_be_does_not_start(limited, capfd):
    with pytest.raises(RuntimeError):
        start("--model", "noop", "--instances", 2, "--intra-op-threads", 64, before=limited)
    assert "raise the limit of processes" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EAGAIN, "the system lets this user start only 0"),
        (errno.EMFILE, "whether 8 threads more can be started cannot be tried (Too many open files)"),
    ],
)
def test_what_is_lacking_to_try_threads_is_told_as_it_is(monkeypatch, number, says):
    async def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    with pytest.raises(ModelFailed, match=re.escape(says)):
        asyncio.run(try_threads([], 2, 4))
