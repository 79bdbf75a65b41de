"""Units: real processes over gloo on loopback hold parts of a model, and answer as the whole one does."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

import numpy as np
import psutil
import pytest
import torch

from serving_adapter.models.loading import load_model
from serving_adapter.models.minilm import LAYERS
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.messages import BatchError, ModelReference
from serving_adapter.server.workers.parallelism import UnitMember
from serving_adapter.server.workers.unit import MEETING_S, Unit, UnitBroken
from tests.support.models.split import FAILS_AT_THE_SECOND, FAILS_EVERYWHERE, STOPS_THE_SECOND, UNITS
from tests.support.servers.real_zygote import HOST, RealWorker, RealZygote

SMALL_VGG16 = {"image_size": "32", "width": "48"}
TOLD = ModelReference("tests.support.models.split:told")
ENDS_WITHIN_S = 30
SILENCE_S = 3.0  # long enough for members that are there to say something
FAILED, BROKEN, ALONE = 1, 2, 3  # the exit statuses of a member


@pytest.fixture(scope="module")
def told() -> Iterator[RealZygote]:
    running = RealZygote(TOLD)
    yield running
    running.close()


def token_ids(*lengths: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    ids = np.zeros((len(lengths), max(lengths)), np.int64)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = rng.integers(999, 30_000, length)
    return ids


def images(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3, 32, 32)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "options", "sizes", "batches"),
    [
        ("minilm", {}, (2, 3), [{"token_ids": token_ids(5, 5)}, {"token_ids": token_ids(9, 1, 40)}]),
        ("vgg16", SMALL_VGG16, (2,), [{"image": images(1)}, {"image": images(3)}]),
    ],
)
def test_a_unit_answers_as_the_whole_model_does(name, options, sizes, batches):
    whole = load_model(name, options)
    zygote = RealZygote(ModelReference(name, tuple(options.items())))
    try:
        assert zygote.description.parts == whole.parts
        for size in sizes:
            first, *_ = zygote.unit(size)
            for batch in batches:
                first.send(batch)
                answered = first.outputs_of_batch()
                expected = whole.run({key: torch.from_numpy(array) for key, array in batch.items()})
                assert answered.keys() == expected.keys()
                for key, array in answered.items():
                    scale = float(expected[key].abs().max())
                    torch.testing.assert_close(
                        torch.from_numpy(array), expected[key], atol=1e-5 * scale, rtol=0
                    )
    finally:
        zygote.close()


@pytest.mark.parametrize("size", [2, 3])
def test_each_member_holds_a_part_and_their_sum_is_answered(told, size):
    first, *_ = told.unit(size)
    first.send_batch(3.0)
    answered = first.outputs_of_batch()
    assert answered["units"].tolist() == [[UNITS / size]]
    assert answered["sum"].tolist() == [[3.0 * UNITS] * 16]


def test_a_batch_that_the_model_refuses_fails_alone(told):
    first, *_ = told.unit(2)
    first.send_batch(FAILS_EVERYWHERE)
    refused = first.reply()
    assert isinstance(refused, BatchError)
    assert "no node can do this" in refused.error
    first.send_batch(1.0)
    assert first.outputs_of_batch()["sum"][0, 0] == UNITS


def assert_all_end(members: list[RealWorker]) -> None:
    assert not psutil.wait_procs([member.process for member in members], timeout=ENDS_WITHIN_S)[1]


@pytest.mark.parametrize("dead", [0, 1])
def test_a_member_that_dies_ends_the_other_and_no_batch_is_answered(told, dead):
    members = told.unit(2)
    members[dead].process.kill()
    assert_all_end([members[dead]])
    if dead:
        members[0].send_batch(1.0)
    assert members[0].reply() is None
    assert_all_end(members)


def test_a_member_that_dies_within_a_batch_leaves_it_unanswered(told):
    first, second = told.unit(2)
    first.send_batch(STOPS_THE_SECOND)
    second.await_status(psutil.STATUS_STOPPED)
    assert not first.has_said_something()
    second.process.kill()
    assert first.reply() is None
    assert_all_end([first, second])


def test_a_batch_that_fails_at_one_member_alone_is_not_answered(told):
    members = told.unit(2)
    members[0].send_batch(FAILS_AT_THE_SECOND)
    members[1].process.wait(2 * 60)
    assert members[0].reply() is None
    assert_all_end(members)


def member_of_two(rank: int, meeting: socket.socket, act: str, meeting_s: float, silence_s: float) -> int:
    """A process of its own, which exits with 0 once `act` returns."""
    pid = os.fork()
    if pid:
        return pid
    status = ALONE
    try:
        host, port = meeting.getsockname()
        unit = Unit(
            UnitMember(rank, 2, HOST, host, port), None if rank else meeting.fileno(), meeting_s, silence_s
        )
        status = FAILED
        globals()[act](unit)
        status = 0
    except UnitBroken:
        status = status if status == ALONE else BROKEN
    finally:
        os._exit(status)


def ends_of(
    act: str, ranks: Sequence[int], meeting_s: float = MEETING_S, silence_s: float = SILENCE_S
) -> list[int]:
    """The exit statuses of these of two members."""
    torch.set_num_threads(1)
    with socket.create_server((HOST, 0)) as meeting:
        pids = [member_of_two(rank, meeting, act, meeting_s, silence_s) for rank in ranks]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def wait_for_the_other(unit: Unit) -> None:
    """The first one waits until the other agrees, and that one for a batch."""
    if unit.is_first:
        unit.agree(False)
    else:
        unit.take(Arena.create("inputs"))


def test_a_member_that_says_nothing_counts_as_gone(apart):
    assert apart(ends_of, wait_for_the_other.__name__, (0, 1)) == [BROKEN, BROKEN]


def test_members_that_do_not_come_are_not_waited_for_for_ever(apart):
    assert apart(ends_of, wait_for_the_other.__name__, (0,), 0.5) == [ALONE]


def end_of_one_that_is_waited_for(silence_s: float) -> list[int]:
    """Of two members, the second of which comes when the first has waited longer than `silence_s`."""
    torch.set_num_threads(1)
    with socket.create_server((HOST, 0)) as meeting:
        first = member_of_two(0, meeting, agree.__name__, MEETING_S, silence_s)
        ended, _ = psutil.wait_procs([psutil.Process(first)], timeout=2 * silence_s)
        assert not ended
        second = member_of_two(1, meeting, agree.__name__, MEETING_S, silence_s)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (first, second)]


def agree(unit: Unit) -> None:
    unit.agree(False)


def test_a_unit_may_take_longer_to_meet_than_a_member_may_be_silent(apart):
    assert apart(end_of_one_that_is_waited_for, SILENCE_S) == [0, 0]


def run_minilm(unit: Unit) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    part = unit.split(load_model("minilm", {}))
    with CommDebugMode() as seen:
        part.run(part.example(rows=2))
    counts = {str(operation): count for operation, count in seen.get_comm_counts().items()}
    assert counts == {"c10d_functional.all_reduce": 2 * LAYERS}, counts


def test_only_sums_of_parts_travel_between_the_members_and_no_weights(apart):
    assert apart(ends_of, run_minilm.__name__, (0, 1), MEETING_S, 30.0) == [0, 0]
