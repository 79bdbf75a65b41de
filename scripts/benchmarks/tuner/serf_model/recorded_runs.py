"""The runs of `serf-model` in a file, a JSON object a line, so that an interrupted benchmark goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.benchmarks.tuner.serf_model.cases import LightProfile, MeasuredRun
from scripts.kept_rows import check_setting

Row = tuple[MeasuredRun, LightProfile]


class RecordedRuns:
    """What has been measured under one setting; with no path nothing is kept."""

    def __init__(self, path: Path | None, setting: Mapping[str, Any], done: list[Row]) -> None:
        self._path, self._setting, self._done = path, dict(setting), done

    @classmethod
    def open(cls, path: Path | None, setting: Mapping[str, Any]) -> RecordedRuns:
        """ValueError where the file holds something else, or rows of another setting."""
        if path is None or not path.exists():
            return cls(path, setting, [])
        done = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                found = MeasuredRun(**row["run"]), LightProfile.from_json(row["profile"])
                of = row["setting"]
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{path}, line {number}, is no run of serf-model ({error}): give another --out"
                ) from None
            check_setting(path, of, setting)
            done.append(found)
        return cls(path, setting, done)

    def of(self, instances: int, threads: int, runs: int) -> list[Row]:
        """All runs of a configuration, the last of each share; nothing unless there are so many."""
        found = {
            ran.share: (ran, profile)
            for ran, profile in self._done
            if (ran.instances, ran.intra_op_threads) == (instances, threads)
        }
        return list(found.values()) if len(found) == runs else []

    def add(self, ran: MeasuredRun, profile: LightProfile) -> None:
        self._done.append((ran, profile))
        if self._path is None:
            return
        row = {"setting": self._setting, "run": ran._asdict(), "profile": profile.to_json()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
