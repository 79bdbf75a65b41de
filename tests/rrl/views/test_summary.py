from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from envs.simulated import SimulatedServing
from rrl.agent import Agent
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.guarding.outage import DOWN
from rrl.journal import Journal, read
from rrl.knobs import in_words
from rrl.measured_costs import best_known
from rrl.measurement import NODES_CHANGED, LatencySummary, Measurement
from rrl.queueing.machine import Machine
from rrl.records import Header, Record
from rrl.space import ConfigurationSpace
from rrl.tuning.decision_words import TAKEN_OVER
from rrl.tuning.listener import Change
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from rrl.tuning.stop import Output
from rrl.tuning.unattended.foreign_changes import STANDS_BACK
from rrl.views.exploration_cost import cost_of_exploration
from rrl.views.exports import LATENCY_PICTURE, export, print_result
from rrl.views.figure import draw
from rrl.views.reference_table import Origin, ReferenceTable
from rrl.views.summary import reference_table_of, summarise
from rrl.views.tensorboard_events import FOLDER, TensorBoardEvents
from rrl.views.terminal import LiveView, PlainView, cost_table, result_table, sparkline
from tests.support.full_disk import files_of_at_most
from tests.support.runs import simulated_runs
from tests.support.runs.simulated_runs import unanswered

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 8])


class Sweeper(Agent):
    def __init__(self) -> None:
        self._next = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        self._next += 1
        return SPACE.action(self._next % len(SPACE))

    def update(self, transition: object) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run over a simulated machine, with a torn start: one instance just bears the load."""
    path = tmp_path_factory.mktemp("run")
    one = np.array([1])
    machine = Machine(
        one, one, np.array([1, 2, 4]), np.array([1, 8]), np.array([[[[20, 40], [25, 50], [60, 90]]]]) / 1e3
    )
    start = {"instances": 1, "max_batch_size": 1}
    env = SimulatedServing(machine, SPACE, arrivals=45.0, interval_s=4.0, start=start)
    env.np_random = np.random.default_rng(3)
    header = Header(
        SPACE, "latency", None, "sweep", 0, "simulated", "machine", start, start, 4.0, "2026-01-01"
    )
    journal = Journal.create(path, header)
    guard = Guard(env.start)
    console = Console(file=(path / "plain.txt").open("w"), width=200)
    view = PlainView(console, header, 16)
    screen = Console(file=(path / "live.txt").open("w"), force_terminal=True, width=100)
    live = LiveView(screen, header, guard, start, 16)
    events = TensorBoardEvents(path, header, [])
    Tuning(
        env, Sweeper(), guard, journal, TuningSettings(intervals=10, baseline=2), [view, live, events]
    ).run()
    live.close()
    summary = export(journal, None, events)
    print_result(console, journal, summary, 0)
    console.file.close()
    screen.file.close()
    journal.close()
    return path


@pytest.fixture
def run(folder: Path) -> tuple[Header, list[Record]]:
    return read(folder)


def test_the_summary_says_what_was_gained(run: tuple[Header, list[Record]]) -> None:
    summary = summarise(*run)
    assert summary.validated
    assert summary.found_better
    assert summary.start.configuration == {"instances": 1, "max_batch_size": 1}
    assert summary.kept == summary.best.configuration
    assert summary.gain == summary.turns.estimate > 1
    assert summary.start.mean_ms == pytest.approx(summary.start.queue_ms + summary.start.service_ms)


def test_a_gain_that_was_not_validated_is_told_at_the_same_arrivals(run: tuple[Header, list[Record]]) -> None:
    header, records = run
    summary = summarise(header, [record for record in records if record.kind != "validation"])
    assert not summary.validated
    assert summary.gain == summary.expected.estimate
    assert summary.gain == pytest.approx(summary.start_beside_best_ms / summary.best.mean_ms, rel=0.01)
    untold = [
        replace(r, transition=replace(r.transition, measurement=replace(r.measurement, telemetry=())))
        for r in records
    ]
    assert summarise(header, untold).gain > 1


@pytest.mark.parametrize(("waited", "counts"), [(50, False), (0, True)])
def test_what_waited_under_the_start_is_not_charged_to_the_change_from_it(
    run: tuple[Header, list[Record]], waited: int, counts: bool
) -> None:
    header, records = run
    k = next(k for k, record in enumerate(records) if record.kind == "tune" and record.number)
    settling = replace(
        records[k].measurement,
        completions=50,
        backlog=0,
        backlog_growth=-waited,
        latency=records[k].measurement.latency._replace(mean_ms=5000.0),
    )
    changed = [*records[:k], replace(records[k], settling=settling), *records[k + 1 :]]

    def cost_s(of: list[Record]) -> float:
        return summarise(header, of).exploration.search_request_s

    assert (cost_s(changed) > cost_s(records) + 100) == counts


def test_an_unfinished_run_has_a_summary_too(run: tuple[Header, list[Record]]) -> None:
    header, records = run
    assert not summarise(header, records[:6]).validated
    assert summarise(header, records[:2]).best == summarise(header, records[:2]).start
    assert summarise(header, []).gain != summarise(header, []).gain  # NaN: nothing is known


def test_the_summary_tells_what_the_run_left_whatever_its_records_suggest(
    run: tuple[Header, list[Record]],
) -> None:
    start = SPACE.number(run[0].start)
    assert summarise(*run).found_better
    summary = summarise(*run, kept=ToKeep(start, "interrupted"))
    assert summary.kept == run[0].start
    assert not summary.found_better


def test_half_a_validation_validates_nothing(run: tuple[Header, list[Record]]) -> None:
    header, records = run
    before = [r for r in records if r.kind != "validation"]
    turns = records[len(before) :]
    assert not summarise(header, [*before, *turns[:3]]).validated
    assert not summarise(header, [*before, *turns[:3], replace(turns[3], learned=False)]).validated
    assert summarise(header, [*before, *turns[:4]]).validated


@pytest.mark.parametrize(("server", "clients", "colour"), [(0, 0, "green"), (0, 2, "red"), (10, 0, "red")])
def test_failed_requests_of_either_count_are_red(
    run: tuple[Header, list[Record]], server: int, clients: int, colour: str
) -> None:
    summary = summarise(*run)
    summary = replace(summary, exploration=summary.exploration._replace(failures=server))
    cells = list(cost_table(summary, clients).columns[1].cells)
    row: Any = next(cell for cell in cells if "clients'" in str(cell))
    assert row.style == colour
    assert "by the server's count" in str(row)


def test_the_cost_of_a_start_that_answered_nothing_is_left_out_of_the_result(
    run: tuple[Header, list[Record]],
) -> None:
    header, records = unanswered(run)
    header = replace(header, objective="strict-slo", slo_p95_ms=500.0)
    table = result_table(header, summarise(header, records))
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["cost"] == cells["mean ms"] == ["-", "-"]


def above(record: Record, latency_ms: float) -> float:
    """Request-seconds above a mean latency; below: negative."""
    return (record.measurement.latency.mean_ms - latency_ms) * record.measurement.completions / 1e3


def test_the_validation_is_a_part_of_its_own_of_what_exploration_cost(
    run: tuple[Header, list[Record]],
) -> None:
    turns = [r for r in run[1] if r.kind == "validation"]
    latency_ms = 0.9 * min(r.measurement.latency.mean_ms for r in turns if r.measurement.completions)
    cost = cost_of_exploration(run[1], latency_ms)
    assert cost.validation_request_s > 0
    assert cost.validation_request_s == pytest.approx(sum(above(r, latency_ms) for r in turns))
    assert cost.turns == len(turns)
    assert cost.extra_request_s == cost.search_request_s + cost.validation_request_s
    before = cost_of_exploration([r for r in run[1] if r.kind != "validation"], latency_ms)
    assert (cost.search_request_s, cost.worse_share) == (before.extra_request_s, before.worse_share)


def test_a_reload_between_turns_is_counted_and_the_baseline_is_not(run: tuple[Header, list[Record]]) -> None:
    (turn, *_) = [r for r in run[1] if r.kind == "validation"]
    mean_ms = turn.measurement.latency.mean_ms
    settling = replace(turn.measurement, completions=40, latency=LatencySummary(mean_ms + 500.0))
    reloaded = replace(turn, settling=settling)
    cost = cost_of_exploration([reloaded], mean_ms)
    assert (cost.search_request_s, cost.intervals) == (0.0, 0)
    assert cost.validation_request_s == pytest.approx(40 * 0.5)
    assert cost_of_exploration([replace(reloaded, kind="baseline")], mean_ms).extra_request_s == 0


def test_the_result_says_what_of_the_cost_was_the_validations(run: tuple[Header, list[Record]]) -> None:
    summary = summarise(*run)
    exploration = summary.exploration._replace(search_request_s=4.0, validation_request_s=2.5, turns=3)
    of_all = "6.5 request-seconds beyond the start's, at the same arrivals"
    for turns, said in ((3, f"{of_all}, 2.5 of them in the validation; "), (0, f"{of_all}; ")):
        shown = replace(summary, exploration=exploration._replace(turns=turns))
        assert any(str(cell).startswith(said) for cell in cost_table(shown, None).columns[1].cells)


def test_the_cost_of_exploration_counts_what_was_above_the_start(run: tuple[Header, list[Record]]) -> None:
    records = [r for r in run[1] if r.kind == "tune"]
    cost = cost_of_exploration(run[1], 50.0)
    extra = [above(r, 50.0) for r in records]
    assert cost.search_request_s == pytest.approx(sum(x for x in extra if x > 0))
    assert cost.worse_share == pytest.approx(np.mean([x > 0 for x in extra]))
    assert cost.intervals == len(records) == 10
    assert cost.failures == 0
    assert cost_of_exploration(run[1], 1e9).extra_request_s == 0


def test_what_users_saw_while_a_change_settled_is_part_of_its_cost(run: tuple[Header, list[Record]]) -> None:
    tried = next(r for r in run[1] if r.kind == "tune")
    mean_ms = tried.measurement.latency.mean_ms
    settling = replace(tried.measurement, completions=40, failures=2, latency=LatencySummary(mean_ms + 500.0))
    cost = cost_of_exploration([replace(tried, settling=settling)], mean_ms)
    assert cost.extra_request_s == pytest.approx(40 * 0.5)
    assert (cost.failures, cost.worse_share) == (2, 1.0)


@pytest.mark.parametrize(
    ("gap", "by_others", "unknown"),
    [
        ("the server restarted", False, 1),
        (NODES_CHANGED, True, 0),
        ("another client changed the configuration within the interval: instances 2 -> 3", True, 0),
        (DOWN, True, 0),
    ],
)
def test_failures_are_not_known_of_an_interval_in_which_the_target_was_away_and_are_of_any_other_gap(
    run: tuple[Header, list[Record]], gap: str, by_others: bool, unknown: int
) -> None:
    there = run[1][0]
    measurement = replace(there.measurement, failures=3, gap=gap, gap_by_others=by_others)
    record = replace(there, transition=replace(there.transition, measurement=measurement))
    cost = cost_of_exploration([record], 50.0)
    assert (cost.failures, cost.gaps) == (3, unknown)


def test_failures_are_not_known_of_an_interval_in_which_somebody_had_unloaded_the_model(
    run: tuple[Header, list[Record]],
) -> None:
    absent = Measurement(5.0, 0, 0, 0, gap="the model is not loaded", gap_by_others=True)
    record = replace(run[1][0], transition=replace(run[1][0].transition, measurement=absent))
    assert cost_of_exploration([record], 50.0).gaps == 1
    assert cost_of_exploration([replace(record, left_to_others=True)], 50.0).gaps == 0


def test_the_reference_table_holds_the_best_of_each_load_level(folder: Path) -> None:
    header, records = read(folder)
    table = ReferenceTable.read(folder / "reference_table.yaml")
    for entry in table.levels.values():
        low, high = entry.rate_per_s
        assert high / low == pytest.approx(1.5, rel=0.01)
        here = [r for r in records if r.learned and low <= r.measurement.arrival_rate_per_s <= high]
        costs: dict[int, list[float]] = {}
        for r in here:
            costs.setdefault(r.number, []).append(r.cost)
        assert SPACE.number(entry.configuration) == best_known(costs)
    assert table.recommend(45.0) in table.levels.values()
    assert table.recommend(4500.0) is None
    assert table.recommend(0.0) is None
    assert header.model == table.model


def test_what_did_not_serve_or_broke_the_limit_is_no_best_of_a_reference_table(folder: Path) -> None:
    header, records = read(folder)
    level, entry = next(iter(reference_table_of(header, records).levels.items()))
    number = SPACE.number(entry.configuration)

    def best(**measurement: Any) -> dict[str, int]:
        told = [replace(r.transition, measurement=replace(r.measurement, **measurement)) for r in records]
        changed = [
            replace(r, transition=t, verdict="what the guard said", rollback="aborted" in measurement)
            if r.number == number
            else r
            for r, t in zip(records, told, strict=True)
        ]
        limit_ms = 1e6 if "latency" in measurement else None
        return reference_table_of(replace(header, slo_p95_ms=limit_ms), changed).levels[level].configuration

    assert best() == entry.configuration  # it was slow once, say
    assert best(failures=9) != entry.configuration
    assert best(aborted="the queue is running away") != entry.configuration
    assert best(latency=LatencySummary(p95_ms=1e7)) != entry.configuration
    lost = [replace(r.transition, measurement=replace(r.measurement, failures=9)) for r in records]
    failed = [replace(r, transition=t, verdict="9") for r, t in zip(records, lost, strict=True)]
    assert not reference_table_of(header, failed).levels
    there = next(r for r in records if r.number == number)
    away = replace(there.transition, measurement=replace(there.measurement, gap="the server restarted"))
    gaps = [replace(there, transition=away, learned=False)] * 8
    assert reference_table_of(header, [*records, *gaps]).levels[level].configuration != entry.configuration


def test_what_the_guard_excused_keeps_nothing_out_of_a_reference_table(folder: Path) -> None:
    header, records = read(folder)
    level, entry = next(iter(reference_table_of(header, records).levels.items()))
    low, high = entry.rate_per_s
    best = next(
        r
        for r in records
        if r.learned
        and r.configuration == entry.configuration
        and low <= r.measurement.arrival_rate_per_s <= high
    )

    def with_interval(rollback: bool = False, **measurement: Any) -> dict[str, int]:
        told = replace(best.transition, measurement=replace(best.measurement, **measurement))
        judged = replace(best, transition=told, verdict="requests came in a burst", rollback=rollback)
        return reference_table_of(header, [*records, judged]).levels[level].configuration

    assert with_interval(failures=1) == entry.configuration
    assert with_interval(failures=20) != entry.configuration
    runs_away = "the queue is running away"
    assert with_interval(aborted=runs_away) == entry.configuration
    assert with_interval(aborted=runs_away, rollback=True) != entry.configuration


def test_a_reference_table_keeps_the_limit_that_its_costs_were_measured_under(
    run: tuple[Header, list[Record]], tmp_path: Path
) -> None:
    header, records = run
    path = tmp_path / "table.yaml"
    for limit_ms in (None, 80.0):
        reference_table_of(replace(header, slo_p95_ms=limit_ms), records).write(path)
        assert ReferenceTable.read(path).slo_p95_ms == limit_ms


def test_a_reference_table_that_a_full_disk_has_no_room_for_leaves_the_one_before(
    folder: Path, tmp_path: Path
) -> None:
    table = ReferenceTable.read(folder / "reference_table.yaml")
    table.write(tmp_path / "table.yaml")
    with files_of_at_most(16), pytest.raises(OSError, match=r"File too large: .*table\.yaml"):
        table.write(tmp_path / "table.yaml")
    assert ReferenceTable.read(tmp_path / "table.yaml") == table


def test_the_reference_table_tells_the_server_it_was_measured_on(
    run: tuple[Header, list[Record]], tmp_path: Path
) -> None:
    header, records = run
    path = tmp_path / "table.yaml"
    for target, server in (("127.0.0.1:8001", "triton 2.51.0"), ("embedded", None)):
        reference_table_of(replace(header, target=target, server=server), records).write(path)
        assert ReferenceTable.read(path).origin == Origin(target.replace("127.0.0.1", "localhost"), server)


def test_a_reference_table_of_an_earlier_version_tells_no_server(folder: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((folder / "reference_table.yaml").read_text())
    del values["target"], values["server"]
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(values))
    table = ReferenceTable.read(path)
    assert table.origin is None
    assert table.levels


@pytest.mark.parametrize(
    "text",
    ["", "levels: 3", "a: [", "levels: {1: {}}", "{levels: {}, target: 3, objective: a, unit: b, model: c}"],
)
def test_what_is_no_reference_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"not a (reference table|YAML file)"):
        ReferenceTable.read(path)
    with pytest.raises(ValueError, match="cannot read"):
        ReferenceTable.read(tmp_path / "absent.yaml")


def test_tensorboard_shows_every_interval(folder: Path) -> None:
    events = EventAccumulator(str(folder / FOLDER), size_guidance={"scalars": 0})
    events.Reload()
    records = read(folder)[1]
    tags = events.Tags()
    wanted = {"latency_ms/mean", "latency_ms/p95", "latency_ms/p99", "latency_ms/queue", "latency_ms/service"}
    wanted |= {"load/arrivals_per_s", "load/backlog", "server/cpu_utilisation", "tuner/decision_ms"}
    wanted |= {"objective/cost", "objective/regret_against_start", "knobs/instances", "knobs/max_batch_size"}
    assert wanted <= set(tags["scalars"])
    means = [event.value for event in events.Scalars("latency_ms/mean")]
    np.testing.assert_allclose(means, [r.measurement.latency.mean_ms for r in records], rtol=1e-5)
    assert tags["images"] == ["run"]
    (image,) = events.Images("run")
    assert image.encoded_image_string == (folder / LATENCY_PICTURE).read_bytes()
    assert {"run/text_summary", "configuration/text_summary"} <= set(tags["tensors"])
    (words, *_) = events.Tensors("configuration/text_summary")
    assert "1 inst." in words.tensor_proto.string_val[0].decode()
    columns, session = events.PluginTagToContent("hparams").values()
    assert b"sweep" in session
    assert b"result/mean_ms" in columns


def test_the_picture_is_drawn_for_any_journal(folder: Path, tmp_path: Path) -> None:
    header, records = read(folder)
    assert (folder / LATENCY_PICTURE).stat().st_size > 20_000
    for count in (0, 1, 3):
        draw(header, records[:count], summarise(header, records[:count]), tmp_path / "few.png")
        assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")


def test_the_exported_configuration_is_the_one_left_in_force(folder: Path) -> None:
    exported = yaml.safe_load((folder / "best_configuration.yaml").read_text())
    assert exported["configuration"] == summarise(*read(folder)).kept


def test_the_text_says_all_a_person_needs(folder: Path) -> None:
    text = (folder / "plain.txt").read_text()
    intervals = len(read(folder)[1])
    assert sum(line.startswith("[") for line in text.splitlines()) == intervals
    for words in (
        "start",
        "best found",
        "gain",
        "cost of exploration",
        "failed requests",
        "tensorboard --logdir",
    ):
        assert words in text
    live = (folder / "live.txt").read_text()
    for words in ("load", "in force", "at the start", "last interval", "best known", "guard", "left"):
        assert words in live


def test_a_model_of_any_name_is_shown_and_drawn(run: tuple[Header, list[Record]], tmp_path: Path) -> None:
    header, records = run
    name, shown = "a[/b] $\\frac$", StringIO()
    screen = Output(file=shown, force_terminal=True, width=150)
    view = LiveView(
        screen,
        replace(header, model=f"{name} \x1b[2J"),
        Guard(header.space.number(header.start)),
        header.found,
        16,
    )
    view.notice("lost \x1b[2J")
    view.close()
    assert "rrl-tune: a[/b] $\\frac$ \ufffd[2J on" in shown.getvalue()
    assert shown.getvalue().count("\ufffd[2J") > 1
    assert "\x1b[2J" not in shown.getvalue()
    header = replace(header, model=name)
    draw(header, records, summarise(header, records), tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 0


def test_what_another_client_has_set_is_shown_as_in_force(run: tuple[Header, list[Record]]) -> None:
    header, shown = run[0], StringIO()
    screen = Console(file=shown, width=150)
    start = header.space.number(header.start)
    view = LiveView(screen, header, Guard(start), header.found, 16)
    theirs = {"instances": 3, "max_batch_size": 5}
    view.changed(Change(datetime(2026, 1, 1, 12), header.found, theirs, TAKEN_OVER, "another client set it"))
    view.decided("wait", start, "wait", STANDS_BACK)
    view.close()
    screen.print(view._view())
    assert f"in force  {in_words(theirs)} " in shown.getvalue()


def test_words_for_configurations_and_bars_for_latencies() -> None:
    words = in_words({"instances": 2, "intra_op_threads": 1, "max_batch_size": 8, "max_queue_delay_us": 1500})
    assert words == "2 inst. · 1 intra · batch 8 · delay 1.5 ms"
    assert sparkline([1, 10, 100]) == "▁▅█"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([]) == ""


def test_a_winner_that_failed_in_its_turns_was_left_for_that_reason(run: tuple[Header, list[Record]]) -> None:
    """Another is proven better than the start, though it was never measured in turns."""
    header, records = run
    first = next(i for i, r in enumerate(records) if r.kind == "validation")
    turn = records[first]
    lost = replace(turn.measurement, failures=turn.measurement.arrivals)
    failing = replace(turn, transition=replace(turn.transition, measurement=lost))
    summary = summarise(header, [*records[:first], failing, records[first + 1]])
    assert summary.kept not in (header.start, SPACE.configuration(turn.number))
    assert "x lower cost than the start" in summary.why_kept
    assert summary.why_kept.endswith("failed, was aborted or broke the limit in its turns")


def test_why_another_than_the_validated_is_left_is_told_by_the_run(
    run: tuple[Header, list[Record]],
) -> None:
    header, records = run
    numbers = {SPACE.number(header.start), *(r.number for r in records[-4:])}
    other = next(n for n in range(len(SPACE)) if n not in numbers)
    summary = summarise(header, records, kept=ToKeep(other, "interrupted"))
    assert summary.kept == SPACE.configuration(other)
    assert not summary.validated
    assert summary.why_kept == "interrupted"


def test_failed_requests_are_told_in_the_row_of_their_interval(run: tuple[Header, list[Record]]) -> None:
    header, records = run
    record = records[0]
    failing = replace(record.measurement, failures=record.measurement.completions)
    text = StringIO()
    view = PlainView(Console(file=text, width=200), header, 16)
    view.measured(replace(record, transition=replace(record.transition, measurement=failing)))
    words = f"{failing.failures} of {2 * failing.failures} failed"
    assert words in text.getvalue()
    changing = replace(record, settling=replace(failing, failures=7))
    assert changing.failures_in_words == "7 failed while the change settled"
    view.measured(changing)
    assert changing.failures_in_words in text.getvalue()
    view.measured(record)
    assert "failed" not in text.getvalue().splitlines()[-1]


def test_the_terminal_tells_a_broken_limit_in_place_of_a_number_of_threads(tmp_path: Path) -> None:
    header, records = simulated_runs.tuned(tmp_path)
    start = header.space.number(header.start)
    costs = [2693.0 if r.number == start else 4.0 for r in records]
    header = replace(header, objective="least-resources", slo_p95_ms=50.0)
    told = [replace(r, transition=replace(r.transition, cost=c)) for r, c in zip(records, costs, strict=True)]
    printed = StringIO()
    Output(file=printed, width=200).print(result_table(header, summarise(header, told)))
    of_start, of_best = printed.getvalue().splitlines()[-3:-1]
    assert of_start.split("│")[-2].strip() == "a broken limit"
    assert of_best.split("│")[-2].strip() == "4.0"


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_figure_of_the_result_is_cut_however_narrow_the_terminal(
    folder: Path, run: tuple[Header, list[Record]], width: int, tmp_path: Path
) -> None:
    header, records = run
    header = replace(header, objective="strict-slo", slo_p95_ms=500.0)
    journal = Journal.create(tmp_path, header)
    journal.records.extend(records)
    summary = summarise(header, records)
    printed = StringIO()
    print_result(Console(file=printed, width=width), journal, summary, 0)
    journal.close()
    table = printed.getvalue().partition("gain")[0]
    assert "…" not in table
    for figure in ("configuration", "mean ms", "p99", "service", "cost", f"{summary.best.p95_ms:.1f}"):
        assert figure in table


def test_a_narrow_terminal_tells_how_many_intervals_are_over(run: tuple[Header, list[Record]]) -> None:
    header, shown = run[0], StringIO()
    screen = Console(file=shown, width=40)
    view = LiveView(screen, header, Guard(header.space.number(header.start)), header.found, 2000, 1999)
    view.close()
    screen.print(view._view())
    assert "measuring the start 1999/2000 " in shown.getvalue()
    assert "…" not in shown.getvalue()


def test_one_of_a_thing_is_no_plural(run: tuple[Header, list[Record]]) -> None:
    summary = summarise(*run)
    cost = summary.exploration._replace(intervals=1, worse_share=1.0, gaps=1)
    said = " ".join(
        str(cell) for cell in cost_table(replace(summary, exploration=cost), None).columns[1].cells
    )
    assert "; the only tuning interval was worse than the start" in said
    assert "not known of 1 interval in which the target was away" in said
