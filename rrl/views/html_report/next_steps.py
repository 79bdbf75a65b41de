"""What to do with the result: the configuration as a diff, how to keep it, how to get it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit, urlunsplit
from xml.etree.ElementTree import Element

from rrl.joint import is_joint
from rrl.knobs import shown, words_of
from rrl.records import EMBEDDED, NO_END, SIMULATION, Header
from rrl.views.html_report.markup import Children, scrolled, tag
from rrl.views.html_report.numbers import NOTHING
from rrl.views.html_report.run_view import RunView


def configuration(run: RunView, diff: str) -> Children:
    return [_knobs(run), _diff(run, diff)]


def _knobs(run: RunView) -> Element:
    header, kept = run.header, run.summary.kept
    rows = []
    for name in {**header.found, **kept}:
        before, after = header.found.get(name), kept.get(name, header.found.get(name))
        changed = before != after
        rows.append(
            tag(
                "tr",
                tag("th", words_of(name).label, scope="row"),
                tag("td", _value(name, before)),
                tag("td", tag("strong", _value(name, after)) if changed else _value(name, after)),
                tag("td", "" if name in kept else "not tuned"),
                class_="changed" if changed else None,
            )
        )
    head = tag("tr", tag("td"), tag("th", "found", scope="col"), tag("th", "to use", scope="col"), tag("td"))
    return scrolled(tag("table", tag("thead", head), tag("tbody", *rows), class_="knobs"), "Knobs")


def _diff(run: RunView, diff: str) -> Children:
    if not diff:
        if run.header.found_config_pbtxt is None or not run.kept_as_found:
            return None  # The journal does not tell the whole configuration.
        return tag("p", "The model's configuration stays as it was found.", class_="note")
    lines: list[Element | str] = []
    for line in diff.splitlines():
        kind = None if line.startswith(("---", "+++")) else {"+": "ins", "-": "del"}.get(line[:1])
        lines += [tag(kind, line) if kind else line, "\n"]
    return [
        tag("p", "The model's whole configuration as found, and what changes in it:", class_="note"),
        tag(
            "pre",
            tag("code", *lines),
            class_="diff",
            tabindex=0,
            role="region",
            aria_label="Configuration diff",
        ),
    ]


def apply(run: RunView, files: Sequence[str]) -> Children:
    """How to keep it: what a server was told at run time ends with the server."""
    header = run.header
    if header.target == SIMULATION:
        return None
    if run.kept_as_found:
        return tag("p", "There is nothing to apply: the configuration found stays.")
    steps: list[Element] = []
    if header.target == EMBEDDED:
        steps.append(tag("p", "The embedded server ended with its run. On yours:"))
    elif run.ended:
        ends = "The run left it in force, but what a server is told at run time ends with the server."
        steps.append(tag("p", ends))
    is_of_several = is_joint(header.space)
    if is_of_several and "best_model_config.json" in files:
        steps += _apply_several(header)
    elif "best_config.pbtxt" in files:
        keep = "To keep it, put this file in the place of the model's own, for the server's next start:"
        steps.append(tag("p", keep))
        place = shlex.quote(f"MODEL_REPOSITORY/{header.model}/config.pbtxt")
        steps.append(_command(f"cp best_config.pbtxt {place}"))
    elif "best_serve_config.yaml" in files:
        steps.append(tag("p", "To keep it, deploy this file, which has all applications of the cluster:"))
        dashboard = shlex.quote(f"http://{header.target.partition('://')[2]}")
        steps.append(_command(f"serve deploy --address {dashboard} best_serve_config.yaml"))
    if "best_model_config.json" in files and not is_of_several:
        load = "To put it in force on a server that runs (a Triton needs --model-control-mode=explicit):"
        steps.append(tag("p", load))
        steps.append(
            _command(
                "import tritonclient.grpc as triton\n\n"
                f"client = triton.InferenceServerClient({json.dumps(_address(header))})\n"
                f'client.load_model({json.dumps(header.model)}, config=open("best_model_config.json").read())'
            )
        )
    if not steps:
        steps.append(tag("p", "Set the knobs above in the model's config.pbtxt and load it again."))
    return steps


def _apply_several(header: Header) -> list[Element]:
    """The same of models that were tuned together."""
    keep = "To keep it, put these files in the place of the models' own, for the server's next start:"
    load = "To put it in force on a server that runs (a Triton needs --model-control-mode=explicit):"
    return [
        tag("p", keep),
        _command("cp -r best_config/. MODEL_REPOSITORY/"),
        tag("p", load),
        _command(
            "import json\n"
            "import tritonclient.grpc as triton\n\n"
            f"client = triton.InferenceServerClient({json.dumps(_address(header))})\n"
            'for model, config in json.load(open("best_model_config.json")).items():\n'
            "    client.load_model(model, config=json.dumps(config))"
        ),
    ]


def reproduce(run: RunView) -> Children:
    header = run.header
    facts = [
        ("target", run.target),
        ("model", header.model),
        ("agent", header.agent),
        ("seed", str(header.seed)),
        (
            "objective",
            header.objective + ("" if header.slo_p95_ms is None else f", p95 limit {header.slo_p95_ms:g} ms"),
        ),
        ("begun", header.started_at),
        (
            "intervals",
            f"{header.interval_s:g} s each; after a change at least {header.settle_s:g} s to settle, "
            "twice as long after a reload",
        ),
        ("rrl-tune", software()),
    ]
    other_day = "The load is the target's own: the same command meets another day's requests."
    return [
        _command(command(header)),
        tag("p", other_day, class_="note") if header.target != EMBEDDED else None,
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), class_="facts"),
    ]  # fmt: skip


def command(header: Header) -> str:
    """The command line that would start this run again."""
    arguments: list[str] = ["rrl-tune"]
    endless = header.intervals >= NO_END and header.duration_s is None
    if endless:
        arguments.append("watch")
    if header.target != EMBEDDED:
        arguments += ["--target", header.target]
    if header.metrics_url is not None:
        arguments += ["--metrics-url", _without_password(header.metrics_url)]
    arguments += ["--model", header.model, "--agent", header.agent, "--seed", str(header.seed)]
    if header.objective != "latency":
        arguments += ["--objective", header.objective]
    if header.slo_p95_ms is not None:
        arguments += ["--slo-p95-ms", f"{header.slo_p95_ms:g}"]
    arguments += ["--knobs", *(f"{k.name}={','.join(map(str, k.values))}" for k in header.space.knobs)]
    arguments += ["--interval-s", f"{header.interval_s:g}", "--settle-s", f"{header.settle_s:g}"]
    if header.duration_s is not None:
        arguments += ["--duration", f"{header.duration_s:g}"]
    elif not endless:
        arguments += ["--intervals", str(header.intervals)]
    arguments += ["--validation", str(header.validation)]
    if (header.load or {}).get("bench"):
        arguments.append("--bench")
    for name in ("rate", "concurrency", "arrivals", "sizes", "input_data", "shape", "time_unit"):
        value = (header.load or {}).get(name)
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            arguments += [f"--{name.replace('_', '-')}", str(one)]
    for name, value in (header.limits or {}).items():
        if value:
            texts = value if isinstance(value, list | tuple) else [] if value is True else [value]
            arguments += [f"--{name.replace('_', '-')}", *map(str, texts)]
    if header.machine is not None:
        arguments += ["--machine", header.machine]
    if header.agent_from is not None and "folder" in header.agent_from:
        arguments += ["--agent-from", str(header.agent_from["folder"])]
    return shlex.join(arguments)


def _without_password(url: str) -> str:
    """A report is passed on: what a URL has before an @ is not for all who read it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def software() -> str:
    """The version that writes the report."""
    try:
        return version("rrl-tune")
    except PackageNotFoundError:
        return "not installed"


FILES = {
    "intervals.csv": "every interval, a row each",
    "pareto.csv": "latency, answers and threads of every configuration measured",
    "metrics-model-inference.csv": "the same with the columns of Model Analyzer",
    "summary.json": "the result, for scripts",
    "reference_table.yaml": "load level → best configuration known",
    "best_config.pbtxt": "the configuration as Triton keeps it",
    "best_serve_config.yaml": "the application as serve deploy takes it",
    "best_config.diff": "... against the one found",
    "best_model_config.json": "the same as load_model takes it",
    "found_model_config.json": "the configuration found, to go back to, as load_model takes it",
    "found_serve_config.yaml": "the configuration found, to go back to, as serve deploy takes it",
    "best_configuration.yaml": "its knobs alone",
    "changes.log": "every change with its reason, a line each",
    "latency.png": "the run in one picture",
    "journal.jsonl": "all of it; what resumes a run and what this page is made from",
}


def beside(files: Sequence[str]) -> Element:
    """Links to the files that lie beside the page."""
    rows = [
        tag("div", tag("dt", tag("a", name, href=name)), tag("dd", meaning))
        for name, meaning in FILES.items()
        if name in files
    ]
    return tag("dl", *rows, class_="facts files")


def _command(text: str) -> Element:
    return tag("pre", tag("code", text), class_="command", tabindex=0, role="region", aria_label="command")


def _address(header: Header) -> str:
    return "localhost:8001" if header.target == EMBEDDED else header.target


def _value(name: str, value: int | None) -> str:
    return NOTHING if value is None else shown(name, value)
