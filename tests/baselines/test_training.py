"""`rrl-train`: the journal it writes, and that an agent taught it is the trained one."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines import make_agent
from baselines.training import OfflineTraining, main
from baselines.training_options import OfflineTrainingOptions
from envs.simulated import SimulatedServing
from rrl.agent import Agent, Task
from rrl.belief import learned_prior
from rrl.journal import FILE_NAME, read
from rrl.queueing.machine import Machine
from rrl.records import SIMULATION, Record
from rrl.tuning.pretraining import Pretraining
from rrl.views.time_axis import ends_min
from tests.support.full_disk import files_of_at_most

SMALL = ["--machine", "family:3", "--knobs", "instances=1:3,intra_op_threads=1,4"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Machine.invent(1, busy_instances=(1, 2, 4), batch_size=(1, 8)).save("machine.npz")
    np.savez("halved.npz", batch_size=np.array([1]))


def exit_code(*arguments: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return ended.value.code


def train(out: str, *arguments: object) -> tuple[Any, list[Record]]:
    main([*SMALL, "--out", out, *map(str, arguments)])
    return read(Path(out))


def what_came(records: list[Record]) -> list[object]:
    return [(r.kind, r.number, r.cost, r.measurement) for r in records]


def test_the_journal_holds_the_simulated_intervals_with_their_telemetry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    header, records = train("out", "--agent", "random", "--decisions", 12, "--rate", 9, "--seed", 4)
    assert (header.target, header.model, header.agent, header.seed) == (SIMULATION, "family-3", "random", 4)
    assert [r.kind for r in records] == ["baseline"] + ["tune"] * 12
    assert all(r.measurement.telemetry for r in records)
    rates_per_s = [r.measurement.arrival_rate_per_s for r in records]
    assert np.mean(rates_per_s) == pytest.approx(9, rel=0.2)
    for before, after in pairwise(records):
        np.testing.assert_array_equal(before.transition.next_observation, after.transition.observation)
    assert "rrl-tune --agent-from out" in capsys.readouterr().out


def test_intervals_end_by_the_simulated_servers_clock() -> None:
    header, records = train("out", "--agent", "random", "--decisions", 8, "--workload", "dynamic")
    lengths_s = [r.measurement.duration_s for r in records]
    np.testing.assert_allclose(np.diff([r.wall_time_s for r in records]), lengths_s[1:], atol=1e-3)
    begun_s = datetime.fromisoformat(header.started_at).timestamp()
    assert records[0].wall_time_s == pytest.approx(begun_s + lengths_s[0], abs=1e-3)
    assert 60 * ends_min(records, header.interval_s)[-1] == pytest.approx(
        header.interval_s + sum(lengths_s[1:]), rel=1e-6
    )


def test_the_same_seed_trains_the_same() -> None:
    common = ["--decisions", 8, "--agent", "random", "--workload", "dynamic"]
    first = what_came(train("a", *common)[1])
    assert first == what_came(train("b", *common)[1])
    assert first != what_came(train("c", *common, "--seed", 1)[1])


@pytest.mark.parametrize("agent", ["rrl-tuned", "sweep"])
def test_an_agent_taught_the_journal_decides_as_the_trained_one(agent: str) -> None:
    options = OfflineTrainingOptions(
        "family:3", Path("out"), agent, ("instances=1:3,intra_op_threads=1,4",), decisions=6
    )
    training = OfflineTraining.of(options)
    training.run()
    training.journal.close()
    pretraining = Pretraining.read(Path("out"))
    taught = make_agent(agent, Task(training.space, training.objective), options.seed)
    pretraining.replay(taught, training.space)
    for rate_per_s in (5.0, 14.0, 40.0):
        observation = pretraining.records[-1].transition.next_observation.copy()
        observation[0] = rate_per_s
        np.testing.assert_array_equal(taught.act(observation), training.agent.act(observation))


def test_the_agent_is_not_told_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int | None] = []

    def make(name: str, task: Task, seed: int) -> Agent:
        told.append(task.cores)
        return make_agent(name, task, seed)

    monkeypatch.setattr("baselines.training.make_agent", make)
    OfflineTraining.of(OfflineTrainingOptions("machine.npz", Path("out"), "random")).journal.close()
    assert told == [None]


def test_an_agents_former_name_is_taken_for_the_present_one(capsys: pytest.CaptureFixture[str]) -> None:
    train("out", "--agent", "rrl", "--decisions", 2)
    header = json.loads(Path("out", FILE_NAME).read_text().splitlines()[0])
    assert header["agent"] == "guided"
    assert "agent 'rrl' is taken for 'guided': " in capsys.readouterr().err


def test_a_machine_file_is_trained_on_its_own_grid() -> None:
    main(["--machine", "machine.npz", "--agent", "random", "--decisions", "2", "--out", "out"])
    header, _ = read(Path("out"))
    assert header.model == "machine"
    assert header.space.knobs[0].values == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--agent", "alphago"], "unknown agent 'alphago'; known: guided, "),
        (["--objective", "capacity"], "objective 'capacity' is of a load that answers to the server"),
        (["--agent", "oracle"], "use rrl-compare"),
        (["--agent", "serf"], "use rrl-tune --agent serf --machine FILE"),
        (["--machine", "family:1-2"], "trained on one machine, got 2: family:1-2"),
        (["--machine", "absent.npz"], "there is no machine file 'absent.npz'"),
        (["--machine", "halved.npz"], "lacks inter_op_threads"),
        (["--machine", "family:x"], "cannot read the seeds"),
        (["--workload", "steady"], "unknown workload 'steady'; known: stationary, dynamic, wiki"),
        (["--knobs", "instances=1:99"], "lies beyond the machine's table"),
        (["--knobs", "cores=1:4"], "unknown knob 'cores'"),
        (["--objective", "strict-slo"], "give --slo-p95-ms"),
        (["--decisions", "0"], "--decisions must be at least 1, got 0"),
        (["--requests-per-interval", "0"], "--requests-per-interval must be at least 1, got 0"),
        (["--rate", "-2"], "--rate must be above 0"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--out", "/proc/x"], "/proc/x"),
    ],
)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*SMALL, "--out", "out", *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert "best-fixed" not in said
    assert "\n" not in said
    assert not Path("out").exists()


def test_a_trace_too_short_for_the_decisions_is_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("day.csv").write_text("minute,requests\n" + "".join(f"{minute},90\n" for minute in range(6)))
    arguments = ["--agent", "random", "--workload", "minutes:day.csv", "--decisions"]
    assert exit_code(*SMALL, "--out", "out", *arguments, 6) == 2
    assert "the trace has 6 bins, too few for 7 decisions" in capsys.readouterr().err
    assert not Path("out").exists()
    assert len(train("out", *arguments, 5)[1]) == 6


def test_a_journal_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    train("out", "--agent", "random", "--decisions", 2)
    assert exit_code(*SMALL, "--out", "out") == 2
    assert "out holds a journal already: name another --out" in capsys.readouterr().err


def test_an_interrupted_training_keeps_what_was_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step, taken = SimulatedServing.step, []

    def interrupted(self: SimulatedServing, action: np.ndarray) -> Any:
        taken.append(action)
        if len(taken) > 3:
            raise KeyboardInterrupt
        return step(self, action)

    monkeypatch.setattr(SimulatedServing, "step", interrupted)
    assert exit_code(*SMALL, "--agent", "random", "--out", "out") == 130
    assert "holds what was learned so far" in capsys.readouterr().err
    assert len(Pretraining.read(Path("out")).records) == 4


def test_a_full_disk_is_one_sentence_and_what_was_learned_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with files_of_at_most(16 << 10):
        assert exit_code(*SMALL, "--agent", "random", "--out", "out") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"cannot read or write out/{FILE_NAME}: File too large; out/{FILE_NAME} holds what was learned so far"
    )
    assert Pretraining.read(Path("out")).records


@pytest.mark.parametrize("save", [Machine.invent(2).save, lambda path: learned_prior.save([], path)])
def test_a_file_that_a_full_disk_cuts_short_does_not_take_the_place_of_a_whole_one(save: Any) -> None:
    path = Path("kept.npz")
    path.write_bytes(b"whole")
    with files_of_at_most(4), pytest.raises(OSError, match=r"File too large: 'kept\.npz'"):
        save(path)
    assert path.read_bytes() == b"whole"
    assert not list(Path().glob("*.part"))
