"""The simulator against queueing formulas, its own invariants and a second, slow simulation."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.queueing.simulator import Simulation

Slice = tuple[float, dict[str, int]]  # until when, under which configuration


def machine_of(table_s: np.ndarray) -> Machine:
    """A machine without threads: `table_s` (N, B)."""
    n, b = table_s.shape
    one = np.array([1])
    return Machine(one, one, np.arange(1, n + 1), np.arange(1, b + 1), table_s[None, None])


def constant_machine(service_s: float) -> Machine:
    return machine_of(np.full((1, 1), service_s))


# ---- a second simulation, event by event, sharing nothing with the first ----


@dataclass
class SlowServer:
    table_s: np.ndarray
    factors: np.ndarray
    padded: bool
    instances: int = 1
    max_batch_size: int = 1
    delay_s: float = 0.0
    queue: deque[tuple[float, float]] = field(default_factory=deque)
    running: int = 0
    rows: list[tuple[float, float, float, int, int]] = field(default_factory=list)  # arrival ... busy, size
    batches: int = 0

    def dispatch(self, now_s: float) -> list[float]:
        finishes_s = []
        while self.queue and self.running < self.instances:
            if len(self.queue) < self.max_batch_size and now_s < self.queue[0][0] + self.delay_s:
                break
            size = min(len(self.queue), self.max_batch_size)
            batch = [self.queue.popleft() for _ in range(size)]
            works = [work for _, work in batch]
            work = max(works) if self.padded else sum(works) / size
            self.running += 1
            service_s = self.table_s[self.running - 1, size - 1] * work
            finish_s = now_s + service_s * self.factors[self.batches % len(self.factors)]
            self.batches += 1
            self.rows += [(arrival_s, now_s, finish_s, self.running, size) for arrival_s, _ in batch]
            finishes_s.append(finish_s)
        return finishes_s


def slow_simulation(
    server: SlowServer, times_s: list[float], works: list[float], slices: list[Slice]
) -> None:
    """At one moment: first a new configuration, then arrivals, then finished batches, then dispatch."""
    changes = zip([0.0] + [until_s for until_s, _ in slices[:-1]], [c for _, c in slices], strict=True)
    events: list[tuple[float, int, int, object]] = [(t, 0, k, c) for k, (t, c) in enumerate(changes)]
    events += [(t, 1, k, work) for k, (t, work) in enumerate(zip(times_s, works, strict=True))]
    heapq.heapify(events)
    while events:
        now_s = events[0][0]
        while events and events[0][0] == now_s:
            _, kind, _, what = heapq.heappop(events)
            if kind == 0:
                assert isinstance(what, dict)
                server.instances = what["instances"]
                server.max_batch_size = what["max_batch_size"]
                server.delay_s = 1e-6 * what["max_queue_delay_us"]
            elif kind == 1:
                assert isinstance(what, float)
                server.queue.append((now_s, what))
            elif kind == 2:
                server.running -= 1
        for finish_s in server.dispatch(now_s):
            heapq.heappush(events, (finish_s, 2, len(server.rows), None))
        if server.queue and server.queue[0][0] + server.delay_s > now_s:
            heapq.heappush(events, (server.queue[0][0] + server.delay_s, 3, len(server.rows), None))


# ---- running ours in slices ----


def run_in_slices(
    simulation: Simulation, times_s: list[float], works: list[float], slices: list[Slice]
) -> list[Outcome]:
    outcomes, arrived = [], 0
    for until_s, configuration in slices:
        end = int(np.searchsorted(times_s, until_s))
        outcome = simulation.run(
            np.array(times_s[arrived:end]), np.array(works[arrived:end]), configuration, until_s
        )
        arrived = end
        assert np.all(outcome.finish_s < until_s)
        outcomes.append(outcome)
        done = sum(len(o.finish_s) for o in outcomes)
        assert done + simulation.backlog == arrived  # no request is lost or made
    assert arrived == len(times_s)
    return outcomes


def rows_of(outcomes: list[Outcome]) -> list[tuple[float, float, float]]:
    joined = Outcome.joined(outcomes)
    return sorted(zip(joined.arrival_s, joined.start_s, joined.finish_s, strict=True))


def batches_of(outcomes: list[Outcome]) -> list[tuple[float, float, float, float]]:
    joined = Outcome.joined(outcomes)
    columns = (joined.batch_start_s, joined.batch_finish_s, joined.batch_busy, joined.batch_size)
    return sorted(zip(*columns, strict=True))


quarters = st.integers(0, 6).map(lambda n: n / 4)  # so that events fall together exactly
configurations = st.fixed_dictionaries(
    {
        "instances": st.integers(1, 4),
        "max_batch_size": st.integers(1, 4),
        "max_queue_delay_us": st.sampled_from([0, 250_000, 500_000, 700_000, 3_000_000]),
    }
)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    gaps = draw(st.lists(st.one_of(quarters, st.floats(0, 2, width=32)), max_size=40))
    works = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=len(gaps), max_size=len(gaps)))
    return np.cumsum(gaps).tolist(), works


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    cells = draw(st.lists(st.integers(1, 12), min_size=16, max_size=16))
    return np.array(cells).reshape(4, 4) / 4


@st.composite
def schedules(draw: st.DrawFn) -> list[Slice]:
    gaps = draw(st.lists(quarters, max_size=4))
    ends = [*np.cumsum(gaps).tolist(), math.inf]
    return [(end, draw(configurations)) for end in ends]


@settings(max_examples=300, deadline=None)
@given(workloads(), tables(), schedules(), st.booleans(), st.sampled_from([[1.0], [0.5, 2.0, 1.25]]))
def test_it_agrees_exactly_with_a_slow_simulation_whatever_the_changes(
    workload: tuple[list[float], list[float]],
    table_s: np.ndarray,
    slices: list[Slice],
    padded: bool,
    factors: list[float],
) -> None:
    machine = machine_of(table_s)
    slow = SlowServer(table_s, np.array(factors), padded)
    slow_simulation(slow, *workload, slices)
    ours = Simulation(machine, padded_batches=padded, service_factors=np.array(factors))
    outcomes = run_in_slices(ours, *workload, slices)
    assert rows_of(outcomes) == sorted(row[:3] for row in slow.rows)
    slow_batches = [row[1:] for k, row in enumerate(slow.rows) if k == 0 or row[1:] != slow.rows[k - 1][1:]]
    # Rows of equal batches that start together fall together: their requests tell them apart.
    assert sorted(set(batches_of(outcomes))) == sorted(set(slow_batches))
    assert Outcome.joined(outcomes).batch_size.sum() == len(slow.rows)


@settings(max_examples=150, deadline=None)
@given(workloads(), tables(), configurations, st.lists(quarters, max_size=6))
def test_a_run_cut_into_slices_is_the_same_run(
    workload: tuple[list[float], list[float]],
    table_s: np.ndarray,
    configuration: dict[str, int],
    gaps: list[float],
) -> None:
    machine = machine_of(table_s)
    cuts = [(cut, configuration) for cut in np.cumsum(gaps).tolist()]
    whole = run_in_slices(Simulation(machine), *workload, [(math.inf, configuration)])
    cut = run_in_slices(Simulation(machine), *workload, [*cuts, (math.inf, configuration)])
    assert rows_of(whole) == rows_of(cut)
    assert batches_of(whole) == batches_of(cut)
    busy_s = [sum(outcome.busy_thread_s for outcome in outcomes) for outcomes in (whole, cut)]
    assert busy_s[0] == pytest.approx(busy_s[1])
    service_s = sum(finish_s - start_s for start_s, finish_s, *_ in batches_of(whole))
    assert busy_s[0] == pytest.approx(service_s)


@settings(max_examples=150, deadline=None)
@given(workloads(), tables(), configurations)
def test_a_queue_keeps_its_rules(
    workload: tuple[list[float], list[float]], table_s: np.ndarray, configuration: dict[str, int]
) -> None:
    times_s, works = workload
    [outcome] = run_in_slices(Simulation(machine_of(table_s)), times_s, works, [(math.inf, configuration)])
    # A single run to the end lists requests and batches in the order in which they started.
    rows = list(zip(outcome.arrival_s, outcome.start_s, outcome.finish_s, strict=True))
    columns = (outcome.batch_start_s, outcome.batch_finish_s, outcome.batch_busy, outcome.batch_size)
    batches = list(zip(*columns, strict=True))
    delay_s = 1e-6 * configuration["max_queue_delay_us"]
    c, b = configuration["instances"], configuration["max_batch_size"]

    assert [row[0] for row in rows] == times_s  # first come, first served
    assert all(early[1] <= late[1] for early, late in pairwise(rows))
    first = 0
    for start_s, _, busy, size in batches:
        members = rows[first : first + int(size)]
        first += int(size)
        assert {row[1] for row in members} == {start_s}
        head_s = members[0][0]
        assert 1 <= size <= b
        assert all(arrival_s <= start_s for arrival_s, _, _ in members)
        if size < b:  # not full: only because its oldest has waited
            assert start_s >= head_s + delay_s
            assert first == len(rows) or rows[first][0] > start_s  # and nobody who could join was left
        in_service = sum(s <= start_s < f for s, f, *_ in batches)
        assert busy <= in_service <= c
        ready_s = head_s + delay_s
        if len(rows) >= first - int(size) + b:
            ready_s = min(ready_s, rows[first - int(size) + b - 1][0])
        if start_s > ready_s:  # it waited for an instance: work conservation
            assert sum(s < start_s <= f for s, f, *_ in batches) == c
    assert first == len(rows)


# ---- formulas ----


def poisson(count: int, rate_per_s: float, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


def mean_wait_s(outcome: Outcome) -> float:
    return float(np.mean(outcome.start_s - outcome.arrival_s))


def test_one_instance_with_constant_service_waits_as_m_d_1() -> None:
    service_s, load = 0.05, 0.7
    outcome = Simulation(constant_machine(service_s)).run(
        poisson(400_000, load / service_s, 1), None, {}, math.inf
    )
    assert mean_wait_s(outcome) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.03)


def test_one_instance_with_exponential_service_waits_as_m_m_1() -> None:
    service_s, load, count = 0.05, 0.6, 400_000
    factors = np.random.default_rng(2).exponential(size=count)
    simulation = Simulation(constant_machine(service_s), service_factors=factors)
    outcome = simulation.run(poisson(count, load / service_s, 3), None, {}, math.inf)
    assert mean_wait_s(outcome) == pytest.approx(load * service_s / (1 - load), rel=0.04)


def test_several_instances_wait_as_erlang_c_says() -> None:
    service_s, load, c, count = 0.05, 0.8, 4, 400_000
    factors = np.random.default_rng(4).exponential(size=count)
    simulation = Simulation(constant_machine(service_s), service_factors=factors)
    outcome = simulation.run(poisson(count, c * load / service_s, 5), None, {"instances": c}, math.inf)
    offered = c * load
    last = offered**c / math.factorial(c) / (1 - load)
    waiting = last / (sum(offered**k / math.factorial(k) for k in range(c)) + last)
    assert mean_wait_s(outcome) == pytest.approx(waiting * service_s / (c * (1 - load)), rel=0.06)


# ---- limited processor sharing ----


@dataclass
class SharedBatch:
    requests: list[tuple[float, float]]  # arrival, work
    start_s: float
    busy: int
    whole_s: float = 1.0  # with one batch of one request in service, on a table of ones
    progress: float = 0.0


@dataclass
class SharedServer:
    """Processor sharing, from moment to moment, sharing nothing with ours."""

    table_s: np.ndarray
    factors: list[float]
    configuration: dict[str, int]
    now_s: float = 0.0
    queue: list[tuple[float, float]] = field(default_factory=list)
    active: list[SharedBatch] = field(default_factory=list)
    rows: list[tuple[float, float, float, int, int]] = field(default_factory=list)
    started: int = 0

    def full_time_s(self, batch: SharedBatch) -> float:
        return batch.whole_s * float(self.table_s[len(self.active) - 1, len(batch.requests) - 1])

    def advance(self, until_s: float) -> None:
        while self.active:
            left_s = {id(b): (1 - b.progress) * self.full_time_s(b) for b in self.active}
            first = min(self.active, key=lambda b: left_s[id(b)])
            step_s = min(left_s[id(first)], until_s - self.now_s)
            shares = [step_s / self.full_time_s(b) for b in self.active]
            for batch, share in zip(self.active, shares, strict=True):
                batch.progress += share
            finished = left_s[id(first)] <= until_s - self.now_s
            self.now_s += step_s
            if not finished:
                return
            self.active.remove(first)
            self.rows += [
                (arrival_s, first.start_s, self.now_s, first.busy, len(first.requests))
                for arrival_s, _ in first.requests
            ]
            self.dispatch()
        self.now_s = until_s

    def dispatch(self) -> None:
        limit, delay_s = self.configuration["instances"], 1e-6 * self.configuration["max_queue_delay_us"]
        while self.queue and len(self.active) < limit:
            full = len(self.queue) >= self.configuration["max_batch_size"]
            if not full and self.now_s < self.queue[0][0] + delay_s - 1e-12:
                return
            size = min(len(self.queue), self.configuration["max_batch_size"])
            batch = SharedBatch(self.queue[:size], self.now_s, len(self.active) + 1)
            del self.queue[:size]
            batch.whole_s = sum(work for _, work in batch.requests) / size
            batch.whole_s *= self.factors[self.started % len(self.factors)]
            self.started += 1
            self.active.append(batch)


def shared_rows(
    server: SharedServer, times_s: list[float], works: list[float], slices: list[Slice]
) -> list[tuple[float, float, float, int, int]]:
    arrivals = list(zip(times_s, works, strict=True))
    for until_s, configuration in slices:
        server.configuration = configuration
        server.dispatch()
        while True:
            due_s = (
                server.queue[0][0] + 1e-6 * configuration["max_queue_delay_us"] if server.queue else math.inf
            )
            due_s = due_s if due_s > server.now_s else math.inf
            arrival_s = arrivals[0][0] if arrivals else math.inf
            event_s = min(due_s, arrival_s, until_s)
            server.advance(event_s)
            if event_s == until_s:
                break
            if event_s == arrival_s:
                server.queue.append(arrivals.pop(0))
            server.dispatch()
    return sorted(server.rows)


@pytest.mark.parametrize("seed", range(40))
def test_shared_processors_agree_with_a_slow_simulation_whatever_the_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table_s = np.sort(rng.uniform(0.1, 2.0, (4, 4)), axis=0)  # no two events fall together
    count = int(rng.integers(1, 60))
    times_s = np.cumsum(rng.exponential(0.4, count)).tolist()
    works, factors = rng.uniform(0.5, 2.0, count).tolist(), rng.uniform(0.5, 2.0, 7)
    ends = [*np.sort(rng.uniform(0, 30, int(rng.integers(0, 4)))).tolist(), math.inf]
    slices: list[Slice] = [
        (
            end,
            {
                "instances": int(rng.integers(1, 5)),
                "max_batch_size": int(rng.integers(1, 5)),
                "max_queue_delay_us": int(rng.choice([0, 300_000, 1_700_000])),
            },
        )
        for end in ends
    ]
    expected = shared_rows(SharedServer(table_s, factors.tolist(), slices[0][1]), times_s, works, slices)
    ours = Simulation(machine_of(table_s), discipline="ps", service_factors=factors)
    outcomes = run_in_slices(ours, times_s, works, slices)
    assert np.array(rows_of(outcomes)) == pytest.approx(np.array([row[:3] for row in expected]), abs=1e-9)
    slow_batches = sorted({(row[1], *row[3:]) for row in expected})
    joined = Outcome.joined(outcomes)
    batches = sorted(zip(joined.batch_start_s, joined.batch_busy, joined.batch_size, strict=True))
    assert np.array(batches) == pytest.approx(np.array(slow_batches), abs=1e-9)


def test_without_interference_shared_processors_are_instances_of_their_own() -> None:
    rng = np.random.default_rng(8)
    table = np.tile(rng.uniform(0.1, 0.6, 4), (3, 1))
    configuration = {"instances": 3, "max_batch_size": 4, "max_queue_delay_us": 50_000}
    times_s = np.cumsum(rng.exponential(0.1, 500))
    outcomes = [
        Simulation(machine_of(table), discipline=discipline).run(times_s, None, configuration, math.inf)
        for discipline in ("fcfs", "ps")
    ]
    queued, shared = (rows_of([outcome]) for outcome in outcomes)
    assert np.allclose(queued, shared, rtol=1e-9)
    assert outcomes[0].busy_thread_s == pytest.approx(outcomes[1].busy_thread_s)


@pytest.mark.parametrize("variation", [0.0, 1.0])
def test_shared_processors_answer_as_m_g_1_ps_whatever_the_distribution(variation: float) -> None:
    service_s, load, count, most = 0.05, 0.6, 200_000, 80
    rng = np.random.default_rng(9)
    factors = np.exp(variation * rng.standard_normal(count) - variation**2 / 2)
    shared = machine_of(service_s * np.arange(1.0, most + 1)[:, None])  # n in service: each n times as slow
    simulation = Simulation(shared, discipline="ps", service_factors=factors)
    outcome = simulation.run(poisson(count, load / service_s, 10), None, {"instances": most}, math.inf)
    latency_s = float(np.mean(outcome.finish_s - outcome.arrival_s))
    assert latency_s == pytest.approx(service_s / (1 - load), rel=0.03)


def test_shared_processors_by_hand() -> None:
    simulation = Simulation(machine_of(np.array([[2.0], [4.0]])), discipline="ps")
    first = simulation.run(np.array([0.0, 1.0, 1.5]), None, {"instances": 2}, 2.0)
    assert len(first.finish_s) == 0
    # At 1 the first is half done, and both go at half speed; at 3 it ends and the third starts.
    second = simulation.run(np.empty(0), None, {"instances": 2}, math.inf)
    assert second.finish_s.tolist() == pytest.approx([3.0, 5.0, 6.0])
    assert second.start_s.tolist() == pytest.approx([0.0, 1.0, 3.0])
    rows = second.telemetry()
    assert [row[:3] for row in rows] == [(1, 1, 1), (2, 1, 2)]
    # Alone until 1, then two until 5, then one again.
    assert [row.mean_busy for row in rows] == pytest.approx([5 / 3, (2 + 5 / 3) / 2])
    assert first.busy_thread_s + second.busy_thread_s == pytest.approx(1.0 + 2 * 4.0 + 1.0)


def test_draining_answers_everything_and_puts_the_clock_back() -> None:
    simulation = Simulation(constant_machine(1.0))
    assert len(simulation.run(np.array([0.1, 0.2]), None, {}, 0.5).finish_s) == 0
    assert simulation.drain({}).finish_s.tolist() == pytest.approx([1.1, 2.1])
    assert (simulation.backlog, simulation.now_s) == (0, 0.5)
    assert simulation.run(np.array([0.6]), None, {}, 9.0).finish_s.tolist() == [1.6]


def test_an_unknown_discipline_is_refused() -> None:
    with pytest.raises(ValueError, match="known: fcfs, ps"):
        Simulation(constant_machine(1.0), discipline="lifo")  # type: ignore[arg-type]


# ---- by hand ----


def test_with_fewer_instances_the_backlog_waits_until_enough_have_finished() -> None:
    simulation = Simulation(machine_of(np.array([[3.0], [5.0], [7.0]])))
    first = simulation.run(np.array([0.0, 0.1, 0.2, 0.3, 0.4]), None, {"instances": 3}, 1.0)
    assert len(first.finish_s) == 0
    assert simulation.backlog == 5
    # Finishes: 3.0, 5.1, 7.2. Under one instance the fourth starts only when all three are done.
    second = simulation.run(np.empty(0), None, {"instances": 1}, 6.0)
    assert second.finish_s.tolist() == [3.0, 5.1]
    assert simulation.backlog == 3
    # Back to three while one runs: two start at once, and the one that was over the limit still counts.
    third = simulation.run(np.empty(0), None, {"instances": 3}, math.inf)
    assert third.arrival_s.tolist() == [0.2, 0.3, 0.4]
    assert third.start_s.tolist() == [0.2, 6.0, 6.0]
    assert third.batch_busy.tolist() == [3, 2, 3]
    assert third.finish_s.tolist() == pytest.approx([7.2, 11.0, 13.0])
    assert simulation.backlog == 0


def test_thread_seconds_are_those_within_the_run() -> None:
    simulation = Simulation(constant_machine(4.0))
    threads = {"instances": 2, "intra_op_threads": 2, "inter_op_threads": 3}
    assert simulation.run(np.array([1.0, 2.0]), None, threads, 3.0).busy_thread_s == 6 * (2.0 + 1.0)
    assert simulation.run(np.empty(0), None, {}, math.inf).busy_thread_s == 6 * (2.0 + 3.0)


def test_summaries_are_numpys_and_telemetry_adds_up() -> None:
    rng = np.random.default_rng(6)
    table = rng.uniform(0.1, 0.5, (3, 4))
    configuration = {"instances": 3, "max_batch_size": 4, "max_queue_delay_us": 50_000}
    outcome = Simulation(machine_of(table)).run(
        np.cumsum(rng.exponential(0.05, 300)), None, configuration, 20.0
    )
    spans = (
        outcome.finish_s - outcome.arrival_s,
        outcome.start_s - outcome.arrival_s,
        outcome.finish_s - outcome.start_s,
    )
    for summary, span_s in zip(outcome.summaries(), spans, strict=True):
        expected = [span_s.mean(), *np.percentile(span_s, [50, 95, 99])]
        assert summary == pytest.approx([1e3 * value for value in expected])
    rows = outcome.telemetry()
    assert sum(row.count * row.batch_size for row in rows) == len(outcome.finish_s)
    assert [row[:2] for row in rows] == sorted({row[:2] for row in rows})
    for row in rows:
        assert row.total_s == pytest.approx(row.count * table[row.busy_instances - 1, row.batch_size - 1])


def test_an_empty_run_has_no_summaries() -> None:
    outcome = Simulation(constant_machine(1.0)).run(np.empty(0), None, {}, 1.0)
    assert all(np.isnan(summary).all() for summary in outcome.summaries())
    assert outcome.telemetry() == ()


@pytest.mark.parametrize(
    ("arrivals", "sizes", "configuration", "until_s", "message"),
    [
        ([1.0, 0.5, 2.0], None, {}, 9.0, "ascending"),
        ([1.0, math.nan, 2.0], None, {}, 9.0, "ascending"),
        ([-1.0], None, {}, 9.0, "must lie in"),
        ([9.0], None, {}, 9.0, "must lie in"),
        ([], None, {}, -1.0, "cannot run to"),
        ([], None, {}, math.nan, "cannot run to"),
        ([1.0], [1.0, 2.0], {}, 9.0, "sizes"),
        ([1.0], [0.0], {}, 9.0, "sizes"),
        ([1.0], None, {"instances": 0}, 9.0, "at least 1"),
        ([1.0], None, {"max_queue_delay_us": -1}, 9.0, "negative"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    arrivals: list[float],
    sizes: list[float] | None,
    configuration: dict[str, int],
    until_s: float,
    message: str,
) -> None:
    simulation = Simulation(constant_machine(1.0))
    with pytest.raises(ValueError, match=message):
        simulation.run(np.array(arrivals), None if sizes is None else np.array(sizes), configuration, until_s)
    assert (simulation.backlog, simulation.now_s) == (0, 0.0)
    assert simulation.run(np.array([0.5]), None, {}, 9.0).finish_s.tolist() == [1.5]


def test_bad_variation_factors_are_refused() -> None:
    for factors in ([], [0.0], [math.nan], [[1.0]]):
        with pytest.raises(ValueError, match="service factors"):
            Simulation(constant_machine(1.0), service_factors=np.array(factors))
