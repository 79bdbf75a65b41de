"""Two fronts over a real connection, each with a real model: what a client asks of one, both do."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.fronts.first_front import FirstFront
from serving_adapter.server.fronts.orders import FrontOrder
from serving_adapter.server.fronts.other_front import OtherFront
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.surroundings import THIS_MACHINE
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.share import Share
from tests.support.waiting import eventually

OPTIONS = ServeOptions(model=("noop",), engine="ray", fronts=2, instances=2)


class Orders:
    """Keeps what the first front has the others started with; the test starts them."""

    orders: Sequence[str] = ()
    is_over = False

    async def open(self) -> str:
        return "127.0.0.1"

    def start(self, orders: Sequence[str]) -> None:
        self.orders = orders

    def start_no_more(self) -> None:
        self.is_over = True

    async def close(self) -> None: ...


class Two:
    """The first front and another one, whose parts of the instances are halves.

    The other one gets no worker while the file `no_forks` is there.
    """

    def __init__(self, no_forks: Path) -> None:
        fragile = ModelReference("tests.support.models.fragile:fragile", (("no_fork_while", str(no_forks)),))
        self.first_model, self.other_model = (
            ServedModel(
                "noop",
                (ModelReference("noop"), fragile)[front],
                "cpu",
                Knobs(instances=2),
                Protection(),
                ResilienceSettings(),
                RedundantModels(),
                dataclasses.replace(THIS_MACHINE, share=Share(front, 2)),
            )
            for front in range(2)
        )
        self.orders = Orders()
        self.first = FirstFront(OPTIONS, {"noop": self.first_model}, None, self.orders)

    async def open(self) -> None:
        await self.first.open()
        self.order = FrontOrder.from_text(self.orders.orders[0])
        self.other = OtherFront(self.order, {"noop": self.other_model})

    async def start_first(self) -> None:
        await self.first_model.start()
        await self.first.serving("127.0.0.1:1", "")

    async def start_other(self) -> None:
        await self.other.open()
        await self.other_model.start()
        await self.other.serving("127.0.0.1:2", "")
        await eventually(lambda: len(self.first.answering) == 2)

    async def start(self) -> None:
        await self.start_first()
        await self.start_other()

    async def end(self) -> None:
        await self.other.close()
        await self.first.close()
        assert self.orders.is_over  # nobody is started anew
        for model in (self.first_model, self.other_model):
            await model.close(grace_s=1.0)

    @property
    def in_force(self) -> list[Knobs]:
        return [self.first_model.knobs, self.other_model.knobs]


def run(scenario: Callable[[Two], Awaitable[None]], no_forks: Path = Path("/no/such/file")) -> None:
    async def within() -> None:
        two = Two(no_forks)
        await two.open()
        try:
            async with asyncio.timeout(100):
                await scenario(two)
        finally:
            await two.end()

    asyncio.run(within())


def load_of(instances: int, max_batch_size: int = 1) -> pb.RepositoryModelLoadRequest:
    asked = pb.RepositoryModelLoadRequest(model_name="noop")
    asked.parameters["config"].string_param = json.dumps(
        {"instance_group": [{"count": instances}], "max_batch_size": max_batch_size}
    )
    return asked


def wanted(two: Two, instances: int, max_batch_size: int = 1) -> list[Knobs]:
    knobs = dataclasses.replace(two.first_model.knobs, instances=instances, max_batch_size=max_batch_size)
    return [knobs, knobs]


def test_a_change_asked_of_either_is_in_force_on_both_with_the_workers_shared_out() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        await two.other.load(load_of(instances=3, max_batch_size=4))
        assert two.in_force == wanted(two, 3, 4)
        assert [len(model.pool.workers) for model in (two.first_model, two.other_model)] == [2, 1]
        await two.first.load(load_of(instances=2, max_batch_size=8))
        assert two.in_force == wanted(two, 2, 8)

    run(scenario)


def test_what_the_other_cannot_do_is_in_force_on_none_and_whoever_asked_reads_why() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        two.other_model.max_rows = 4
        with pytest.raises(ModelFailed, match="front 2 cannot, and all go on as before: max_batch_size=8 is"):
            await two.first.load(load_of(instances=4, max_batch_size=8))
        with pytest.raises(Refused, match="front 2 cannot, and all go on as before: max_batch_size=8 is"):
            await two.other.load(load_of(instances=4, max_batch_size=8))
        assert two.in_force == wanted(two, 2)

    run(scenario)


def test_what_no_front_takes_is_refused_with_the_same_words_at_each() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        said = "instances=1 is below the 2 fronts, each of which needs a worker of its own; raise it"
        for front in (two.first, two.other):
            with pytest.raises(Refused, match=said):
                await front.load(load_of(instances=1))

    run(scenario)


def test_a_change_while_the_other_is_away_is_in_force_on_it_when_it_starts() -> None:
    async def scenario(two: Two) -> None:
        await two.start_first()
        await two.first.load(load_of(instances=5, max_batch_size=4))
        assert two.other_model.knobs.instances == 2
        await two.start_other()
        assert two.in_force == wanted(two, 5, 4)
        assert len(two.other_model.pool.workers) == 2

    run(scenario)


def test_one_that_starts_where_none_of_its_workers_fits_takes_no_part(tmp_path: Path) -> None:
    no_forks = tmp_path / "no-forks"

    async def touch(pids: Sequence[int], workers: int, threads: int) -> None:
        no_forks.touch()

    async def scenario(two: Two) -> None:
        await two.start_first()
        model = two.other_model
        model.surroundings = dataclasses.replace(model.surroundings, check_threads=touch)  # the last step
        with pytest.raises(ModelFailed, match="no worker of model 'noop' fits now"):
            await two.start_other()
        assert len(two.first.answering) == 1

    run(scenario, no_forks)


def test_one_that_lacks_a_worker_takes_part_goes_with_what_asks_for_none_and_has_it_once_it_fits(
    tmp_path: Path,
) -> None:
    no_forks = tmp_path / "no-forks"

    async def scenario(two: Two) -> None:
        await two.start_first()
        await two.other.open()
        await two.other_model.start()
        no_forks.touch()
        await two.first.load(load_of(instances=4))
        await two.other.serving("127.0.0.1:2", "")
        await eventually(lambda: len(two.first.answering) == 2)
        assert two.in_force == wanted(two, 4)
        assert len(two.other_model.pool.workers) == 1
        await two.first.load(load_of(instances=4, max_batch_size=8))
        assert two.in_force == wanted(two, 4, 8)
        with pytest.raises(ModelFailed, match="front 2 cannot, and all go on as before"):
            await two.first.load(load_of(instances=6))
        no_forks.unlink()
        await eventually(lambda: len(two.other_model.pool.workers) == 2)

    run(scenario, no_forks)


def test_one_that_has_the_newest_configuration_takes_part_again_without_a_change() -> None:
    async def scenario(two: Two) -> None:
        await two.start()

        async def reshape(*_: object) -> None:
            raise ModelFailed("a change was made")

        two.other_model.pool.reshape = reshape  # type: ignore[assignment, method-assign]
        next(iter(two.first._joined.values())).leave()
        await eventually(lambda: len(two.first.answering) == 1)
        await eventually(lambda: len(two.first.answering) == 2)

    run(scenario)


def test_a_connection_that_ends_is_made_anew_with_the_newest_configuration() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        next(iter(two.first._joined.values())).leave()
        await eventually(lambda: len(two.first.answering) == 1)
        with pytest.raises(Refused, match="the first front does not answer, and all changes go through it"):
            await two.other.load(load_of(instances=3))
        await two.first.load(load_of(instances=4))
        await eventually(lambda: len(two.first.answering) == 2)
        assert two.in_force == wanted(two, 4)

    run(scenario)


def test_the_first_ends_when_the_other_has_finished_which_is_asked_for_no_change_any_more() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        draining = asyncio.create_task(two.first.drain(100.0))
        await stopped.wait()
        await two.other.drain(100.0)
        await eventually(lambda: len(two.first.answering) == 1)
        await two.first.load(load_of(instances=4))
        assert [knobs.instances for knobs in two.in_force] == [4, 2]
        assert not draining.done()
        await two.other.close()
        await draining

    run(scenario)


def test_one_that_ends_is_not_told_to_once_more_and_does_not_come_back() -> None:
    async def scenario(two: Two) -> None:
        await two.start()
        signals: list[int] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signals.append, signal.SIGTERM)
        await two.other.drain(100.0)
        draining = asyncio.create_task(two.first.drain(100.0))
        await two.other.load(load_of(instances=3))  # answered after the first has told it to end
        assert not signals
        next(iter(two.first._joined.values())).leave()
        assert two.other._following is not None
        await two.other._following
        await draining
        assert list(two.first.answering) == [0]

    run(scenario)


@pytest.mark.parametrize("secret", ["guessed", "\ud800"])
def test_who_does_not_know_the_secret_is_no_front(secret: str) -> None:
    async def scenario(two: Two) -> None:
        broken: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        stranger = OtherFront(dataclasses.replace(two.order, secret=secret), {"noop": two.other_model})
        with pytest.raises(ModelFailed, match=r"the first front does not answer at 127\.0\.0\.1:"):
            await stranger.open()
        assert list(two.first.answering) == [0]
        assert not broken

    run(scenario)
