"""Inception-V3 and DeepSpeech 2 as machines: service times that `rrl-profile` measured on the real server.

The table of each model is a machine file in the output folder, `served-inception_v3.npz` and
`served-deepspeech2.npz`. `rrl-compare --machine` takes them as it takes any machine. They cover 1 to 10
instances and threads of either kind, the paper's grid. Between the values of `AXIS` a table is interpolated.

One run of `rrl-profile` measures all numbers of busy instances for one pair of inter-op and intra-op threads:

    rrl-profile --target HOST:PORT --instances 1,2,3,5,7,10 --batch-sizes 1 --inter I --intra A --out PART.npz

Each part is a file in the folder `profiles` there. The same command goes on with those that are there.
DeepSpeech 2 has no parallel branches, so that inter-op threads change nothing for it. Its table says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from rrl.queueing.machine import Machine
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.result import NO_CLAIM, Claim, FigureResult
from scripts.figures.served.models import DEEPSPEECH, INCEPTION, RATES_PER_S, ModelUnderLoad
from scripts.serving.processes import serving
from serving_adapter import resources

NAME = "rrl-machines"
PARTS = "profiles"
AXIS = (1, 2, 3, 5, 7, 10)
LARGEST_INTER_OP = 10  # of a model whose service times do not depend on it


@dataclass(frozen=True)
class MachinesSetting:
    models: tuple[ModelUnderLoad, ...] = (INCEPTION, DEEPSPEECH)
    axis: tuple[int, ...] = AXIS
    requests_per_point: int = 20
    size: int = 32  # of inputs of variable length


def run(out: Path, seeds: int, setting: MachinesSetting | None = None) -> FigureResult:
    """Writes the machine files and rrl-machines.png. `seeds` is the number of profiles that are averaged."""
    setting = setting or MachinesSetting()
    machines = {model.label: _profiled(out, model, seeds, setting) for model in setting.models}
    tables = []
    for model in setting.models:
        tables.append(f"served-{model.name}.npz")
        machines[model.label].save(out / tables[-1])
    _draw(out / f"{NAME}.png", machines)
    return FigureResult(
        title="RRL: Inception-V3 and DeepSpeech 2 as machines",
        setting=f"Service times of rrl-serve on {resources.cores()} cores by light profiling, at least "
        f"{setting.requests_per_point} requests for each entry. Geometric mean of as many profiles as seeds:",
        seeds=seeds,
        claims=tuple(claim for label, machine in machines.items() for claim in _claims(label, machine)),
        pictures=(f"{NAME}.png",),
        tables=tuple(tables),
    )


def _profiled(out: Path, model: ModelUnderLoad, profiles: int, setting: MachinesSetting) -> Machine:
    """The model's table; the parts that are missing are measured."""
    has_inter = "inter_op_threads" in model.knobs
    inter_axis = setting.axis if has_inter else (1,)
    pairs = [(inter, intra) for inter in inter_axis for intra in setting.axis]
    parts = {
        (inter, intra, k): out / PARTS / f"{'-'.join((model.name, *model.options))}-{inter}-{intra}-{k}.npz"
        for k in range(profiles)
        for inter, intra in pairs
    }
    missing = {threads: path for threads, path in parts.items() if not path.exists()}
    if missing:
        (out / PARTS).mkdir(parents=True, exist_ok=True)
        with serving(model.name, *model.server_arguments) as address:
            for (inter, intra, k), path in missing.items():
                print(f"{model.label}: inter {inter}, intra {intra}, profile {k + 1}", flush=True)
                _profile(address, path, inter if has_inter else None, intra, setting, seed=k)
    tables = [
        joined({(inter, intra): Machine.load(parts[inter, intra, k]) for inter, intra in pairs})
        for k in range(profiles)
    ]
    return averaged(tables if has_inter else [for_any_inter_op(table) for table in tables])


def _profile(
    address: str, path: Path, inter: int | None, intra: int, setting: MachinesSetting, seed: int
) -> None:
    """One run of `rrl-profile`; RuntimeError if it fails."""
    values = ",".join(map(str, setting.axis))
    command: list[object] = [sys.executable, "-m", "envs.light_profiling", "--target", address]
    command += ["--instances", values, "--batch-sizes", 1, "--intra", intra, "--size", setting.size]
    command += ["--requests-per-point", setting.requests_per_point, "--seed", seed, "--out", path]
    command += [] if inter is None else ["--inter", inter]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"rrl-profile ended with status {ended.returncode}: {ended.stderr.strip()}")


def joined(parts: Mapping[tuple[int, int], Machine]) -> Machine:
    """One table of those of single pairs of inter-op and intra-op threads, which must be a whole grid."""
    inter, intra = (sorted({threads[axis] for threads in parts}) for axis in (0, 1))
    times_s = np.array([[parts[i, a].service_time_s[0, 0] for a in intra] for i in inter])
    first = next(iter(parts.values()))
    return Machine(np.array(inter), np.array(intra), first.busy_instances, first.batch_size, times_s)


def averaged(tables: Sequence[Machine]) -> Machine:
    """The geometric mean of tables over one grid."""
    times_s = np.exp(np.mean([np.log(table.service_time_s) for table in tables], axis=0))
    first = tables[0]
    return Machine(
        first.inter_op_threads, first.intra_op_threads, first.busy_instances, first.batch_size, times_s
    )


def for_any_inter_op(machine: Machine) -> Machine:
    """The machine of a model that inter-op threads do not concern, for grids that have them."""
    times_s = np.repeat(machine.service_time_s[:1], 2, axis=0)
    inter = np.array([1, LARGEST_INTER_OP])
    return Machine(inter, machine.intra_op_threads, machine.busy_instances, machine.batch_size, times_s)


def _claims(label: str, machine: Machine) -> list[Claim]:
    n = machine.busy_instances
    capacities_per_s = n / machine.service_time_s[..., 0]
    i, a, k = np.unravel_index(int(np.argmax(capacities_per_s)), capacities_per_s.shape)
    best = f"{n[k]} instances, {machine.inter_op_threads[i]} inter-op, {machine.intra_op_threads[a]} intra-op"
    share = RATES_PER_S[0] / capacities_per_s.max()
    worst = capacities_per_s.max() / capacities_per_s.min()
    return [
        Claim(f"{label}: largest capacity", "–", f"{capacities_per_s.max():.1f}/s with {best}", NO_CLAIM),
        Claim(f"{label}: share of it that {RATES_PER_S[0]:g}/s take", "–", f"{share:.2f}", NO_CLAIM),
        Claim(f"{label}: largest capacity over the smallest", "–", f"{worst:.1f}", NO_CLAIM),
    ]


def _draw(path: Path, machines: Mapping[str, Machine]) -> None:
    figure, axes = drawing.new_figure(
        1,
        len(machines),
        width=5.0,
        height=3.4,
        title="Service times on the real server, by busy instances",
        subtitle="one inter-op thread; a line for each number of intra-op threads",
    )
    for ax, (label, machine) in zip(axes[0], machines.items(), strict=True):
        _draw_machine(ax, label, machine)
    drawing.save(figure, path)


def _draw_machine(ax: Axes, label: str, machine: Machine) -> None:
    figure_style.log_axis(ax, "y")
    colours = drawing.SEQUENCE
    for k, intra in enumerate(machine.intra_op_threads):
        times_ms = 1e3 * machine.service_time_s[0, k, :, 0]
        colour = colours[k % len(colours)]
        ax.plot(machine.busy_instances, times_ms, color=colour, marker="o", markersize=3, label=f"{intra}")
    ax.legend(fontsize=7, frameon=False, title="intra-op threads", title_fontsize=7)
    drawing.names(ax, "busy instances", "service time (ms)", label)
