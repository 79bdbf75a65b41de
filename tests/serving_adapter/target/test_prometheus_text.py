"""The forms that a metrics page comes in: read rightly, or refused in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from serving_adapter.target.open_inference.readings import parse_metrics
from serving_adapter.target.prometheus_text import sample
from serving_adapter.target.reading import Reading
from tests.serving_adapter.target.open_inference.test_readings import OURS

COUNTER, BUCKET = "nv_inference_request_success", "rrl_request_latency_seconds_bucket"
NO_NUMBER = "must be a number from 0 up"
RIGHT = parse_metrics(OURS, "m", 1.0)


def edited(edit: Callable[[str], str], prefix: str = "") -> str:
    return "".join(f"{edit(line) if line.startswith(prefix) else line}\n" for line in OURS.splitlines())


def with_value(value: str) -> Callable[[str], str]:
    return lambda line: f"{line.rpartition(' ')[0]} {value}"


@pytest.mark.parametrize(
    "page",
    [
        edited(lambda line: line + ' # {trace_id="a"} 0.067', BUCKET),
        edited(lambda line: line + ' # {trace_id="a} 9 {b"} 0.067 1520879607.789', BUCKET),
        edited(lambda line: line + " # {} 0.067", BUCKET),
        edited(lambda line: line + ' # {trace_id="a"} 1', COUNTER),
        edited(lambda line: line + " 1520879607789"),
        edited(lambda line: line + " 1520879607.789"),
        edited(lambda line: line + " -1.5e9"),
        edited(lambda line: line + ' 1520879607.789 # {trace_id="a"} 1'),
        edited(lambda line: line.replace(COUNTER, COUNTER + "_total")),
        edited(lambda line: f"  {line}  "),
        edited(lambda line: line.replace("} ", "}\t")),
        edited(lambda line: line.replace("}", ",}")),
        edited(lambda line: line.replace("{", "{ ").replace('="', ' = "').replace('",', '" , ')),
        edited(lambda line: line.replace('version="1"', 'version="1",x="a} 5 b{\\""')),
        OURS.replace("\n", "\r\n"),
        OURS + "# EOF\n",
        OURS + COUNTER + '_created{model="m",version="1"} 1.7e9\n',
        OURS + 'rrl_unheard_of{model="m"} NaN\nnv_gpu_utilization{gpu_uuid="gone"} Nan\nrrl_cpu_count NaN\n',
        OURS + f'{COUNTER}{{model="other",version="1"}} 77\n{COUNTER} 9\n',
    ],
)
def test_what_collectors_add_changes_nothing(page: str) -> None:
    assert parse_metrics(page, "m", 1.0) == RIGHT


@pytest.mark.parametrize(
    ("page", "says"),
    [
        *((edited(with_value(text), COUNTER), NO_NUMBER) for text in ("+Inf", "1e999", "NaN", "-1", "1_000")),
        (edited(with_value("\u0661"), COUNTER), NO_NUMBER),
        (edited(with_value("+Inf"), BUCKET), "must be a number from 0 up"),
        (edited(with_value("2"), BUCKET + '{le="+Inf"'), "the buckets of rrl_request_latency_seconds fall"),
        (edited(lambda line: "" if "+Inf" in line else line), 'no bucket le="[+]Inf"'),
        (edited(lambda line: line.replace('le="0.1"', 'le="x"'), BUCKET), "has a bucket up to 'x'"),
        (edited(with_value("1.7e308"), COUNTER), NO_NUMBER),  # two of them sum up to no number
        (edited(with_value("1" * 300_000), COUNTER), NO_NUMBER + ", got .{,90}$"),
        (edited(lambda line: line.replace("{", "{" + 300_000 * "a" + ","), COUNTER), "cannot be read"),
        (OURS + OURS, "has the series .* twice"),
        (edited(lambda line: line + " # hello", COUNTER), "expected `name{labels} value`"),
        (edited(lambda line: line.replace('="1"', "=1"), COUNTER), "the labels of .* cannot be read"),
        (edited(lambda line: line.replace(COUNTER, "nv_renamed")), "of model 'm', but not how many requests"),
        (OURS.replace('model="m"', 'exported_model="m",model="job"'), "is a collector's"),
        (OURS.replace('model="m",', ""), "has neither Triton's"),
        ("\x0a\x1bnv_inference_request_success\x12", "is not a Prometheus metrics page"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_in_a_sentence(page: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_metrics(page, "m", 1.0)


MANY = 200_000


@pytest.mark.parametrize("labels", ["", 'x="' + 2000 * "\\n" + '",'])
def test_very_many_series_of_other_models_are_read_past_or_refused_by_size(labels: str) -> None:
    count = MANY // (1 + len(labels) // 40)
    page = OURS + "".join(f'{COUNTER}{{{labels}model="other{n}",version="1"}} 7\n' for n in range(count))
    if labels:  # with escapes, nothing but reading tells which model's they are
        with pytest.raises(ValueError, match="more than 4 MiB of series beside those of other models"):
            parse_metrics(page, "m", 1.0)
        return
    assert parse_metrics(page, "m", 1.0) == RIGHT
    with pytest.raises(ValueError, match=r"only of m, other0, .{,100} and 199,991 more$"):
        parse_metrics(page, "absent", 1.0)


@pytest.mark.parametrize(
    "line",
    [
        'x="a,model=",y="b",model="m",version="2"',
        'x="{model=",model="m"',
        'x="\\",model=\\"b",model="m"',
        'model_x="b",model="m"',
        ' model = "m" , version="2"',
    ],
)
def test_no_series_of_the_model_is_taken_for_anothers(line: str) -> None:
    with_one_more = parse_metrics(f"{OURS}{COUNTER}{{{line}}} 5\n", "m", 1.0)
    assert with_one_more.success == RIGHT.success + 5


def test_openmetrics_of_a_server_is_read_as_its_plain_page_is() -> None:
    registry = CollectorRegistry()
    for name in (COUNTER, "nv_inference_request_failure", "nv_inference_request_duration_us"):
        Counter(name, "", ["model"], registry=registry).labels("m").inc(7, {"trace_id": "x"})
    Gauge("rrl_in_flight_request_count", "", ["model"], registry=registry).labels("m").set(2)
    latency = Histogram("rrl_request_latency_seconds", "", ["model"], registry=registry).labels("m")
    for value in (0.01, 0.2, 3.0):
        latency.observe(value, {"trace_id": "x"})
    readings = [
        parse_metrics(page.decode(), "m", 1.0)
        for page in (generate_latest(registry), generate_openmetrics(registry))
    ]
    assert readings[0] == readings[1]
    assert (readings[0].success, readings[0].in_flight) == (7, 2)
    assert readings[0].latency is not None
    assert readings[0].latency.cumulative[-1] == 3


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,9}", fullmatch=True)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,9}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], include_characters="\n"), max_size=9),
    max_size=4,
)


@given(NAMES, LABELS, st.floats())
def test_a_sample_is_read_as_the_reference_parser_reads_it(
    name: str, labels: dict[str, str], value: float
) -> None:
    escaped = {k: v.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for k, v in labels.items()}
    written = ",".join(f'{label}="{text}"' for label, text in escaped.items())
    line = f"{name}{{{written}}} {value}"
    (family,) = text_string_to_metric_families(line + "\n")
    (reference,) = family.samples
    read = sample(line)
    assert read[:2] == (reference.name, reference.labels)
    assert float(read[2]) == reference.value or math.isnan(reference.value)


@given(st.text(max_size=200), st.integers(0, len(OURS)))
def test_any_text_is_a_reading_or_one_sentence(text: str, at: int) -> None:
    says = ""
    try:
        assert isinstance(parse_metrics(OURS[:at] + text + OURS[at:], "m", 1.0), Reading)
    except ValueError as error:
        says = str(error)
    assert not says or "metrics page" in says
