"""NVIDIA's own Model Analyzer, with its perf_analyzer, in a virtual environment of its own.

It asks for other versions of gRPC and Optuna than ours. `profile` runs it as its users do, against a Triton
that runs already (`triton_launch_mode: remote`), and reads what it wrote.

The perf_analyzer is that of Triton's client, since the one with a package of its own asks for glibc 2.38. It
needs Debian's libb64-0d.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from scripts.triton_server.installation import CHECKOUT, install_apart
from scripts.triton_server.running import HOST, RunningTriton
from serving_adapter.model_configuration import knob_values, parse_pbtxt

DEFAULT = CHECKOUT / ".triton" / "model-analyzer"
PINS = ("triton-model-analyzer==1.58.0", "tritonclient[all]==2.47.0", "nvidia-cuda-runtime-cu12==12.9.79")
EXPORTS, VARIANTS = "profile_results", "output_models"  # folders in that of a run
LONGEST_S = 3600.0
WINDOWS = 3  # of perf_analyzer, for one figure
SEARCH_IS_OVER = "Done with quick mode search"
MEASURES = re.compile(r"Profiling \S+_config_\w+: ")


@dataclass(frozen=True)
class Profile:
    """What a run of Model Analyzer found."""

    best: Mapping[str, int]  # the knobs of the variant with the highest throughput
    requests_at_once: int  # in the measurement that had it
    answers_per_s: float
    search: int  # measurements of its search
    measurements: int  # all of them: those of the best variants at each concurrency, too
    seconds: float


def install(folder: Path = DEFAULT, say: Callable[[str], object] = print) -> Path:
    """The folder of its commands; RuntimeError, in one sentence, where it cannot be installed or started."""
    commands = install_apart(folder, "Model Analyzer", PINS, "600 MB", say)
    tried = [str(commands / "perf_analyzer"), "--version"]
    ended = subprocess.run(tried, env=environment(commands), capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        why = ended.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(f"perf_analyzer does not start ({why}); install Debian's libb64-0d")
    return commands


def environment(commands: Path) -> dict[str, str]:
    """In which it finds its own perf_analyzer, and none of our modules."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    (libraries,) = commands.parent.glob("lib/*/site-packages/nvidia/cuda_runtime/lib")
    path = f"{commands}{os.pathsep}{own.get('PATH', os.defpath)}"
    return own | {"PATH": path, "LD_LIBRARY_PATH": str(libraries), "NO_PROXY": HOST}


def quick_search_file(server: RunningTriton, repository: Path, model: str, folder: Path) -> str:
    """The options of its quick start as its YAML, for a Triton that runs already, without a GPU."""
    return f"""\
model_repository: {repository}
profile_models:
  {model}:
    cpu_only: true
run_config_search_mode: quick
triton_launch_mode: remote
triton_grpc_endpoint: {server.address}
triton_http_endpoint: {server.http_address}
triton_metrics_url: {server.metrics_url}
output_model_repository_path: {folder}/{VARIANTS}
export_path: {folder}/{EXPORTS}
"""


def profile(commands: Path, config: Path, folder: Path) -> Profile:
    """Runs `model-analyzer profile` in a folder that its file names, too.

    RuntimeError, in one sentence, where it fails.
    """
    log = folder / "model-analyzer.log"
    began_s = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        command = [commands / "model-analyzer", "profile", "-f", config.absolute()]
        ended = _run(command, commands, folder, output)
    seconds = time.monotonic() - began_s
    results = folder / EXPORTS / "results" / "metrics-model-inference.csv"
    if ended.returncode != 0 or not results.is_file():
        raise RuntimeError(f"Model Analyzer ended with {ended.returncode} and no results (see {log})")
    variant, requests_at_once, answers_per_s = best_of(results.read_text(encoding="utf-8"))
    search, measurements = measured(log.read_text(encoding="utf-8"))
    pbtxt = (folder / VARIANTS / variant / "config.pbtxt").read_text(encoding="utf-8")
    knobs = knob_values(parse_pbtxt(pbtxt))
    return Profile(knobs, requests_at_once, answers_per_s, search, measurements, seconds)


def answers_per_s(
    commands: Path, address: str, model: str, window_s: float, folder: Path, at_once: int
) -> float:
    """What perf_analyzer counts, by gRPC with so many requests at once, in three windows.

    CalledProcessError where it fails; its log is in the folder.
    """
    table = folder / "perf_analyzer.csv"
    command = _asking(commands, address, model, at_once, window_s, WINDOWS)
    command += ["-f", table, "--stability-percentage", 999]  # All windows count, however they differ.
    with (folder / "perf_analyzer.log").open("a", encoding="utf-8") as log:
        _run(command, commands, folder, log).check_returncode()
    (row,) = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return float(row["Inferences/Second"])


@contextlib.contextmanager
def users(commands: Path, address: str, model: str, folder: Path, at_once: int) -> Iterator[None]:
    """Meanwhile perf_analyzer asks by gRPC, with so many requests at once.

    RuntimeError, in one sentence, where it ended before.
    """
    path = folder / "users.log"
    with path.open("w", encoding="utf-8") as log:
        command = _asking(commands, address, model, at_once, LONGEST_S, windows=1)
        process = _started(command, commands, folder, log)
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"perf_analyzer ended with {process.returncode} (see {path})")
        finally:
            process.kill()
            process.wait()


def _asking(
    commands: Path, address: str, model: str, at_once: int, window_s: float, windows: int
) -> list[object]:
    command: list[object] = [commands / "perf_analyzer", "-m", model, "-u", address, "-i", "grpc"]
    command += ["--concurrency-range", at_once, "--measurement-mode", "time_windows"]
    return [*command, "--measurement-interval", round(1e3 * window_s), "--max-trials", windows]


def _run(
    command: Sequence[object], commands: Path, folder: Path, log: TextIO
) -> subprocess.CompletedProcess[bytes]:
    process = _started(command, commands, folder, log)
    try:
        return subprocess.CompletedProcess(process.args, process.wait(LONGEST_S))
    finally:
        process.kill()
        process.wait()


def _started(command: Sequence[object], commands: Path, folder: Path, log: TextIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=environment(commands),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def best_of(results: str) -> tuple[str, int, float]:
    """The variant, the requests at once and the answers per second of the highest throughput of its table."""
    rows = [row for row in csv.DictReader(results.splitlines()) if row.get("Model Config Path")]
    (throughput,) = {name for row in rows for name in row if name and name.startswith("Throughput")}
    best = max(rows, key=lambda row: float(row[throughput]))
    return best["Model Config Path"], int(best["Concurrency"]), float(best[throughput])


def measured(log: str) -> tuple[int, int]:
    """The measurements of its search, and all of them, by its log."""
    search, _, _ = log.partition(SEARCH_IS_OVER)
    return len(MEASURES.findall(search)), len(MEASURES.findall(log))
