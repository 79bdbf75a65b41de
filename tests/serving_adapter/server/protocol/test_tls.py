"""A server with a certificate serves who trusts it, over gRPC and HTTP, and tells others what is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from serving_adapter.load.command_line import main as send_load
from serving_adapter.target import OpenInferenceTarget, TargetError
from tests.support.servers.running_server import RunningServer, start
from tests.support.servers.tls import TlsFiles, key_file_in

KEY = "open sesame"
SERVING = b"\x08\x01"  # a HealthCheckResponse
X = np.zeros((1, 16), np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles.made_in(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_file_in(tmp_path_factory.mktemp("keys"), KEY)


@contextmanager
def serving_noop(files: TlsFiles, key_file: Path, *more: object) -> Iterator[RunningServer]:
    running = start("--model", "noop", *files.flags, "--control-key-file", key_file, *more)
    yield running
    running.stop()
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.fixture(scope="module")
def server(files: TlsFiles, key_file: Path) -> Iterator[RunningServer]:
    with serving_noop(files, key_file) as running:
        yield running


@pytest.fixture
def client(server: RunningServer, files: TlsFiles) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(
        server.address, ssl=True, root_certificates=str(files.authority)
    ) as client:
        yield client


@pytest.fixture
def rest_url(client: triton.InferenceServerClient) -> str:
    (port,) = (e[5:-1] for e in client.get_server_metadata().extensions if e.startswith("http("))
    return f"https://127.0.0.1:{port}/v2"


def answered(client: triton.InferenceServerClient) -> bool:
    sent = triton.InferInput("x", list(X.shape), "FP32")
    sent.set_data_from_numpy(X)
    return client.infer("noop", [sent], client_timeout=60).get_response().model_name == "noop"


def body() -> bytes:
    tensor = {"name": "x", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def test_a_stock_client_is_served(client: triton.InferenceServerClient) -> None:
    assert answered(client)


def test_its_health_is_told(server: RunningServer, files: TlsFiles) -> None:
    credentials = grpc.ssl_channel_credentials(files.authority.read_bytes())
    with grpc.secure_channel(server.address, credentials) as channel:
        told = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
    assert told == SERVING


def test_http_is_served_over_tls(rest_url: str, files: TlsFiles) -> None:
    asked = urllib.request.Request(f"{rest_url}/models/noop/infer", body())
    with urllib.request.urlopen(asked, timeout=60, context=files.context()) as answer:
        assert json.loads(answer.read())["model_name"] == "noop"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_is_served(rest_url: str, files: TlsFiles) -> None:
    command = ["curl", "--silent", "--fail", "--noproxy", "*", "--cacert", str(files.authority)]
    subprocess.run([*command, f"{rest_url}/health/ready"], check=True, timeout=60)


def test_who_does_not_encrypt_is_refused_and_harms_nobody(
    server: RunningServer, client: triton.InferenceServerClient, rest_url: str
) -> None:
    with triton.InferenceServerClient(server.address) as plain, pytest.raises(InferenceServerException):
        plain.is_server_live(client_timeout=60)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(rest_url.replace("https", "http"), timeout=60)
    assert answered(client)


def test_who_trusts_another_authority_is_refused(rest_url: str, tmp_path: Path) -> None:
    others = TlsFiles.made_in(tmp_path)
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(rest_url, timeout=60, context=others.context())


def test_the_tuner_changes_it_with_the_key(
    server: RunningServer, client: triton.InferenceServerClient, files: TlsFiles
) -> None:
    with pytest.raises(InferenceServerException, match="control of this server is locked"):
        client.load_model("noop", config="{}")
    target = OpenInferenceTarget(server.address, control_key=KEY, tls_ca=str(files.authority), timeout_s=60)
    target.connect()
    try:
        before = target.configuration()
        target.apply(before | {"max_batch_size": 4})
        assert target.configuration()["max_batch_size"] == 4
        target.apply(before)
    finally:
        target.close()


def test_the_tuner_says_that_certificates_are_missing(server: RunningServer) -> None:
    with pytest.raises(TargetError, match=r"speak TLS \(give its certificates\)"):
        OpenInferenceTarget(server.address, timeout_s=60).connect()


def test_the_tuner_says_that_certificates_do_not_fit(server: RunningServer, tmp_path: Path) -> None:
    others = TlsFiles.made_in(tmp_path)
    with pytest.raises(TargetError, match=r"makes no TLS connection .*check the certificates"):
        OpenInferenceTarget(server.address, tls_ca=str(others.authority), timeout_s=60).connect()


def test_a_load_is_sent_over_tls(server: RunningServer, files: TlsFiles, tmp_path: Path) -> None:
    where = ["--target", server.address, "--tls-ca", str(files.authority), "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        send_load([*where, "--rate", "50", "--duration-s", "1"])
    report = json.loads((tmp_path / "load.json").read_text())
    assert ended.value.code == 0
    assert report["sent"] == report["completed"] > 0
