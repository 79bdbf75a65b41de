"""One run for each concurrency, each with what the agent learned in the one before."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from rrl import command_line
from rrl.command_line import at_each_concurrency
from rrl.command_line.ending import DONE, INTERRUPTED
from rrl.command_line.opening.earlier import Earlier
from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.options import TuneOptions
from rrl.journal import Journal
from rrl.space import ConfigurationSpace
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.stop import Stop
from tests.rrl.test_journal import SPACE, header, record


def test_a_later_run_searches_the_grid_of_the_first_whose_start_need_not_be_among_the_knobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knobs = ("instances=2", "max_batch_size=1,4,8")
    asked: list[TuneOptions] = []

    def tuned(options: TuneOptions, *_: object) -> int:
        """Finds one instance, and adds it to the grid."""
        asked.append(Earlier.of(options).options)
        assert options.out is not None
        journal = Journal.create(options.out, header())
        journal.append(record())
        journal.close()
        return DONE if len(asked) < 3 else INTERRUPTED

    monkeypatch.setattr(at_each_concurrency, "tune", tuned)
    options = TuneOptions(target="localhost:1", bench=True, concurrency="1,4,16", knobs=knobs, out=tmp_path)
    shared = SharedByModels(ChangeLimits(), [])
    assert at_each_concurrency.tune_at_each(options, Console(quiet=True), Stop(print), shared) == INTERRUPTED
    assert asked[0].knobs == knobs
    assert [ConfigurationSpace.parse(each.knobs) for each in asked[1:]] == [SPACE, SPACE]


def test_no_run_begins_once_somebody_stopped_the_one_before_in_its_last_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, tuned = Stop(print), []

    def tune(options: TuneOptions, *_: object) -> int:
        """Is stopped as it writes its report."""
        tuned.append(options.concurrency)
        stop.set()
        return DONE

    monkeypatch.setattr(at_each_concurrency, "tune", tune)
    options = TuneOptions(target="localhost:1", bench=True, concurrency="1,4", out=tmp_path)
    shared = SharedByModels(ChangeLimits(), [])
    assert at_each_concurrency.tune_at_each(options, Console(quiet=True), stop, shared) == INTERRUPTED
    assert tuned == [1]


def test_nor_does_that_of_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, tuned = Stop(print), []

    def tune(options: TuneOptions, *_: object) -> int:
        tuned.append(options.model)
        stop.set()
        return DONE

    monkeypatch.setattr(command_line, "tune_at_each", tune)
    monkeypatch.setattr(command_line, "check_each", lambda runs, console: {})
    options = TuneOptions(target="localhost:1", model="minilm,resnet")
    assert command_line._each_model(options, Console(quiet=True), stop) == INTERRUPTED
    assert tuned == ["minilm"]
