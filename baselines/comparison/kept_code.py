"""Which code made the files that a comparison goes on with, and what is said where it is not today's.

A folder of files has a `code.json` beside them, a list of

| key | what it is |
|---|---|
| `code` | versions of the libraries that make it, digests of our own code and of another's agent's package |
| `files` | the names of those that it made |

Agents that a program adds to the known ones are told by libraries and our own code alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from baselines import AGENTS
from baselines.agents import OURS, libraries_of, origin
from baselines.comparison import on_node
from baselines.comparison.landscapes import FOLDER as LANDSCAPES_FOLDER
from baselines.comparison.on_node import LIBRARIES, LIBRARIES_OF_AGENTS, OWN_CODE, Versions
from baselines.comparison.run import FOLDER as RUNS_FOLDER
from baselines.comparison.run import RunJob
from baselines.comparison.same_code import own_packages
from serving_adapter.whole_files import written_whole

FILE_NAME = "code.json"
UNKNOWN: Versions = {}


class KeptFiles(NamedTuple):
    """Files of one kind that a comparison goes on with."""

    kind: str
    paths: Sequence[Path]
    wanted: int  # how many there are in the end
    code: Versions  # today's


@cache
def code_of(agent: str = "") -> Versions:
    """What makes an agent's runs in this process; without an agent, what makes landscapes."""
    found = on_node.versions(own_packages())
    code = {name: found.get(name, "") for name in (*LIBRARIES, *libraries_of(agent), OWN_CODE)}
    if origin(agent) not in ("", OURS):
        package = AGENTS[agent].agent.partition(":")[0].partition(".")[0]
        code[package] = on_node.digest((package,))
    return code


def note_code(folder: Path, names: Iterable[str], code: Versions) -> None:
    """Tells which code makes these files. Said before they are made, it never leaves one with older code."""
    names = sorted(names)
    noted = _noted(folder) | dict.fromkeys(names, code)
    by_code: dict[str, list[str]] = {}
    for name in sorted(noted):
        by_code.setdefault(json.dumps(noted[name], sort_keys=True), []).append(name)
    entries = [{"code": json.loads(text), "files": files} for text, files in by_code.items()]
    with written_whole(folder / FILE_NAME) as file:
        file.write(f"{json.dumps(entries, indent=1)}\n".encode())


def kept_files(jobs: Sequence[RunJob], missing: Sequence[RunJob]) -> list[KeptFiles]:
    """What a comparison of these runs goes on with: finished runs by agent, and landscapes."""
    to_do = {job.path for job in missing}
    by_agent: dict[str, list[Path]] = {}
    for job in jobs:
        by_agent.setdefault(job.agent, []).append(job.path)
    landscapes = {path for load in {id(job.load): job.load for job in jobs}.values() for path in load.paths()}
    return [
        *(
            KeptFiles(
                f"runs of {agent}", [path for path in paths if path not in to_do], len(paths), code_of(agent)
            )
            for agent, paths in by_agent.items()
        ),
        KeptFiles("landscapes", [p for p in landscapes if p.exists()], len(landscapes), code_of()),
    ]


def said_of_other_code(out: Path, kept: Iterable[KeptFiles]) -> str | None:
    """The sentence about results in this folder that other code than today's made; None without such."""
    wanted: Counter[str] = Counter()
    by_reason: dict[str, Counter[str]] = {}
    for each in kept:
        wanted[each.kind] += each.wanted
        noted = {folder: _noted(folder) for folder in {path.parent for path in each.paths}}
        for path in each.paths:
            reason = _difference(noted[path.parent].get(path.name, UNKNOWN), each.code)
            if reason:
                by_reason.setdefault(reason, Counter())[each.kind] += 1
    if not by_reason:
        return None
    told = "; ".join(
        f"{', '.join(f'{count} of {wanted[kind]} {kind}' for kind, count in counts.items())} ({reason})"
        for reason, counts in by_reason.items()
    )
    return (
        f"{out} goes on with results of other code than today's: {told}; they count all the same, so name "
        f"another folder with --out for numbers of one code, or delete their folders {RUNS_FOLDER}/AGENT "
        f"and {LANDSCAPES_FOLDER} to have them made again"
    )


def _difference(found: Versions, code: Versions) -> str:
    if not found:
        return "unknown code"
    before = {name: found.get(name, "") for name in code}
    return ", ".join(_in_words(name, before[name], code[name]) for name in code if before[name] != code[name])


def _in_words(name: str, found: str, today: str) -> str:
    """Digests tell people nothing."""
    if name not in (*LIBRARIES, *LIBRARIES_OF_AGENTS):
        return f"another {name}"
    return f"{name} {found or 'was lacking'}, today {today or 'lacking'}"


def _noted(folder: Path) -> dict[str, Versions]:
    """By file, as far as it can be told."""
    try:
        entries = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        return {str(name): dict(each["code"]) for each in entries for name in each["files"]}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
