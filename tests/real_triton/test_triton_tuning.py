"""`rrl-tune` on a real Triton under load: what it leaves behind, there and on disk."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from rrl import journal
from rrl.command_line import main
from serving_adapter.model_configuration import edited, knob_values
from tests.support.servers.triton_served import without_preferred_sizes

KNOBS = ("instances=1,2", "max_batch_size=1,8")


def tune(served, *arguments):
    """The command's exit code."""
    target = ("--target", served.address, "--metrics-url", served.metrics_url, "--model", served.model)
    with pytest.raises(SystemExit) as ended:
        main([*target, "--interval-s", "0.5", "--settle-s", "0.1", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def slow(triton, serve):
    """The model `sleep`, left in the configuration in which it was found."""
    view = serve(triton, "sleep")
    found = view.config()
    yield view
    view.load(found)


def test_tuning_leaves_its_exports_and_a_configuration_that_it_measured(slow, load, tmp_path):
    found, folder = slow.config(), tmp_path / "run"
    with load(slow, rate_per_s=30) as sending:
        options = ("--agent", "sweep", "--intervals", 4)  # it changes something however good the start is
        assert tune(slow, *options, "--out", folder, "--knobs", *KNOBS) == 0
    assert sending.failed == {}
    _, records = journal.read(folder)
    assert sum(record.kind == "tune" and record.counted for record in records) == 4
    left = knob_values(slow.config())
    assert {name: left[name] for name in records[-1].configuration} in [r.configuration for r in records]
    in_force = without_preferred_sizes(slow.config())
    assert in_force == without_preferred_sizes(edited(found, left))
    exported = text_format.Parse((folder / "best_config.pbtxt").read_text(), ModelConfig())
    assert without_preferred_sizes(exported) == in_force
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "journal.jsonl",
        "changes.log",
        "report.html",
        "intervals.csv",
        "latency.png",
        "reference_table.yaml",
        "best_configuration.yaml",
        "best_model_config.json",
    }


def test_advice_changes_nothing(slow, load):
    found, started = slow.config(), slow.started_instances()
    with load(slow, rate_per_s=30) as sending:
        assert tune(slow, "--advise", "--intervals", 3) == 0
    assert sending.failed == {}
    assert (slow.config(), slow.started_instances()) == (found, started)


def test_a_limit_is_watched_under_a_load_of_ones_own(slow, tmp_path):
    """Triton's own page tells no percentiles: the load's clients do."""
    folder = tmp_path / "run"
    load = ("--bench", "--rate", 30, "--objective", "goodput", "--slo-p95-ms", 200)
    options = ("--agent", "sweep", "--intervals", 4, "--out", folder, "--knobs", *KNOBS)
    assert tune(slow, *load, *options) == 0
    header, records = journal.read(folder)
    assert header.slo_p95_ms == 200
    learned = [record.measurement.latency for record in records if record.learned]
    assert learned
    assert all(0 < latency.p50_ms <= latency.p95_ms for latency in learned)


@pytest.mark.parametrize(
    ("model", "says"),
    [("dialogue", "forbids every knob"), ("slep", "is not there")],
)
def test_what_cannot_be_tuned_is_one_sentence(triton, serve, capsys, model, says):
    assert tune(serve(triton, model), "--intervals", 1) == 2
    told = capsys.readouterr().err.strip()
    assert says in told
    assert len(told.splitlines()) == 1
