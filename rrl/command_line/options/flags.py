"""The flags of `rrl-tune`, and what each means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from baselines import DEFAULT_AGENT, agents_for_tuning
from rrl.tuning.set_by_others import OnForeignChange
from rrl.tuning.settings import TuningSettings

AGENT_HELP = f"Who proposes configurations: {agents_for_tuning()}."


@dataclass(frozen=True)
class TuneFlags:
    """Every flag, as it was given: `TuneOptions` has checked them."""

    watches: ClassVar[bool] = False  # it is to go on for ever

    target: str | None = None
    """HOST:PORT of the server's gRPC port, or SCHEME://HOST:PORT of another kind of target, such as
    ray://HOST:8265; without one, a local server and load are started and tuned."""
    model: Annotated[str | None, tyro.conf.arg(aliases=["--deployment"])] = None
    """The model to tune; may be left out where the server has only one (embedded: minilm). Several, as in
    minilm,resnet, are tuned in turn, each in its own folder under --out."""
    jointly: bool = False
    """Tune the models named by --model together, as they share the cores: one agent, one grid of all their
    knobs, one start and one best. The cost is that of the mean request of all; under strict-slo, of the model
    with the largest p95."""
    bls_composing_models: str | None = None
    """Models that --model calls (BLS), as in tokenizer,bert: they are tuned with it, for its own latency. The
    steps of an ensemble are found without it."""
    cores: int | None = None
    """Cores that the models named may put to work together, a thread a core. A server that does not tell its
    cores, such as Triton, is taken to have as many. Default: no limit for one model, the machine's cores for
    several; a Triton beside the tuner is then taken to have the tuner's own."""
    from_model_analyzer: Path | None = None
    """A YAML file of Triton's Model Analyzer: target, models, values to search, objective and limit are then
    that file's where no flag sets them. What cannot be taken over is said."""
    metrics_url: str | None = None
    """The server's Prometheus page, where it does not tell itself, and is no Triton at its usual ports
    (8001 and 8002)."""
    control_key_file: Path | None = None
    """File with the key that changing the configuration needs (or set RRL_CONTROL_KEY)."""
    tls_ca: str | None = None
    """PEM file of the certificates to trust; without it the connection is not encrypted."""
    agent: Annotated[str, tyro.conf.arg(help=AGENT_HELP)] = DEFAULT_AGENT
    agent_from: Path | None = None
    """Folder of rrl-train, or of an earlier run, for the agent to start from. Agent, objective, limit,
    knobs and seed are then that folder's; of these only another seed may be given."""
    objective: str = "latency"
    """latency, strict-slo, least-resources, throughput, goodput or capacity. The last one needs a load of the
    run's own (--bench), throughput a closed loop (--concurrency) to tell configurations apart."""
    slo_p95_ms: float | None = None
    """Limit on the p95 latency; the guard keeps it under any objective."""
    knobs: tuple[str, ...] = ()
    """What to tune, e.g. instances=1:4,max_batch_size=1,2,4,8; without it, the target's knobs."""
    interval_s: float = 5.0
    """Seconds from one decision to the next; best several times as long as a request takes."""
    settle_s: float = 1.0
    """Their first part, which is not measured after a change; after a reload at least twice as long."""
    intervals: int | None = None
    """Decisions to take (default 50)."""
    duration: float | str | None = None
    """Or about how long the run may take, of each model: seconds, 5m or 2h.
    With --advise, how long it observes."""
    count_silence: bool = False
    """Intervals without requests use up --intervals as well. Without it, a run waits for requests however
    long they stay away, and says so after 10 minutes, 1 hour, 6 hours, and then every day."""
    on_foreign_change: OnForeignChange = "adopt"
    """Where somebody else changes what is tuned: adopt goes on from it, restore puts the run's own back once,
    stop ends the run. What somebody set last is not replaced at the end."""
    metrics_port: int | None = None
    """Port of a page that the run serves of itself: /metrics for Prometheus, and /health. 0 takes any free
    one. Default: no page."""
    metrics_host: str = "127.0.0.1"
    """Address of that page; the default keeps it on this machine."""
    validation: int = TuningSettings.validation
    """How often the best is measured again at the end, in turns with the start (A B B A), before it is called
    better. The run looks after each pair, and stops once the gain is shown. As many turns follow where these
    leave the question open. A start that cannot bear the load, or that fails, is not put in force again.
    0: never; then the start is measured three times at the beginning, else once."""
    max_changes_per_hour: int | None = None
    """At most so many changes of configuration in any 60 minutes; meanwhile the run waits. The guard's
    rollbacks and the last change of the run are never held back, but counted."""
    change_window: tuple[str, ...] = ()
    """Changes only at these hours, local time, e.g. "Mon-Fri 22:00-06:00" 12:00-13:00; outside, the best
    known to be safe stays in force."""
    forbid: tuple[str, ...] = ()
    """Knobs that are never changed, e.g. instances,max_batch_size."""
    pin: tuple[str, ...] = ()
    """Knobs that are set to a value and kept there, e.g. instances=1; of one of several models
    resnet.instances=1."""
    out: Path | None = None
    """Folder for journal, TensorBoard events, plot and exports (default runs/TIME)."""
    resume: Path | None = None
    """Folder of an earlier run to go on with."""
    export: Path | None = None
    """Folder of an earlier run, killed or not, to write report and exports of anew; nothing else happens."""
    json: bool = False
    """Print summary.json on standard output at the end, a line for each run, and everything else on standard
    error."""
    exit_code: bool = False
    """Tell the outcome by the exit code: 3 nothing better was found, 4 what is left breaks the limit, 5 the
    target was lost."""
    dry_run: bool = False
    """Say what a run would try, keep and look out for; changes nothing and sends nothing."""
    advise: bool = False
    """Observe and recommend, change nothing."""
    reference_table: Path | None = None
    """With --advise or watch: reference_table.yaml, or the folder, of an earlier run, on this target or
    another (default of --advise: the newest of this model on this target under runs/)."""
    apply_after_advise: bool = False
    """With --advise: ask once whether to apply what is recommended; watched by the guard, undone if worse."""
    machine: Path | None = None
    """A machine file that rrl-profile measured: what serf schedules by, and --advise simulates."""
    seed: int = 0
    """Of the agent and of the embedded load."""
    bench: bool = False
    """Sends a load of its own to --target, where there are no users: that of --arrivals, --rate and --sizes,
    or --input-data; with --concurrency a closed loop."""
    input_data: Path | None = None
    """Embedded load: requests of your own, as rrl-load takes them."""
    rate: float | None = None
    """Embedded load, requests per second (default: what the start only just bears)."""
    concurrency: int | str | None = None
    """Embedded load: a closed loop in place of arrivals, with so many requests always under way. Several, as
    in 1,4,16, are tuned for one after the other, each in its own folder under --out."""
    arrivals: str = "poisson"
    """Embedded load: poisson, dynamic, wiki, bursts, a trace FILE.csv, or recorded: when the requests of the
    recording that is --input-data came."""
    sizes: str = "fixed:32"
    """Embedded load: sizes of the requests, as rrl-load takes them."""
    shape: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Embedded load: INPUT:DIM,DIM for an input of variable shape, without the batch dimension; again for
    more inputs."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """Embedded load: the unit of a trace's moments, where neither the column's name nor the numbers tell."""
