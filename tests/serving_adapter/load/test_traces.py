from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serving_adapter.load.arrivals import make_arrivals
from serving_adapter.load.trace_files import read_trace
from serving_adapter.load.traces import CountTrace, TimestampTrace
from tests.support import CHECKOUT

TRACES = CHECKOUT / "../shared/traces"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def real_trace(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"the trace {name} is not in this checkout's shared folder")
    return path


def all_times_s(trace: CountTrace | TimestampTrace, seed: int = 0) -> np.ndarray:
    return np.concatenate(list(trace.times_s(np.random.default_rng(seed))))


def test_counts_are_replayed_exactly_at_their_own_rate(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "minute,requests\n5,3\n6,0\n7,4\n"))
    assert isinstance(trace, CountTrace)
    assert trace.mean_rate_per_s == pytest.approx(7 / 180)
    times_s = all_times_s(trace)
    assert np.histogram(times_s, bins=[0, 60, 120, 180])[0].tolist() == [3, 0, 4]


def test_a_single_column_counts_per_10_ms(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "requests\r\n1\r\n2\r\n3\r\n"))
    assert trace.duration_s == pytest.approx(0.03)
    assert np.histogram(all_times_s(trace), bins=[0, 0.01, 0.02, 0.03])[0].tolist() == [1, 2, 3]


def test_scaling_up_duplicates_and_scaling_down_thins(tmp_path: Path) -> None:
    path = written(tmp_path, "minute,requests\n" + "".join(f"{i},{100 * (i % 2)}\n" for i in range(400)))
    for factor in (0.1, 0.5, 1.0, 2.0, 2.5):
        trace = read_trace(path, 50 / 60 * factor)
        counts = np.histogram(all_times_s(trace), bins=400, range=(0, 400 * 60))[0]
        assert (counts[::2] == 0).all()
        part = factor % 1
        busy = counts[1::2]
        deviation = np.sqrt(100 * part * (1 - part))  # of the binomial: none for a whole factor
        assert busy.mean() == pytest.approx(100 * factor, abs=5 * deviation / np.sqrt(200))
        assert busy.std() == pytest.approx(deviation, rel=0.3)


def test_long_bins_come_in_parts_that_are_quickly_drawn(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "day,requests\n0,1\n1,0\n2,3\n"), 4.0)
    parts = list(trace.times_s(np.random.default_rng(0)))
    assert max(map(len, parts)) < 10_000
    times_s = np.concatenate(parts)
    assert (np.diff(times_s) >= 0).all()
    expected = 4.0 * trace.duration_s * np.array([1, 0, 3]) / 4
    by_day = np.histogram(times_s, bins=3, range=(0.0, trace.duration_s))[0]
    assert by_day == pytest.approx(expected, abs=1)
    by_hour = np.histogram(times_s, bins=72, range=(0.0, trace.duration_s))[0]
    assert by_hour[48:] == pytest.approx(expected[2] / 24, rel=0.05)


def test_an_offset_of_whole_bins_leaves_out_so_many(tmp_path: Path) -> None:
    path = written(tmp_path, "requests\n" + "".join(f"{i}\n" for i in range(10)))
    trace = read_trace(path, bin_s=0.1, offset_s=0.3)
    assert isinstance(trace, CountTrace)
    assert trace.counts.tolist() == [3, 4, 5, 6, 7, 8, 9]


def test_a_faster_clock_keeps_the_asked_rate(tmp_path: Path) -> None:
    path = written(tmp_path, "minute,requests\n" + "".join(f"{i},{i}\n" for i in range(100)))
    trace = read_trace(path, 20.0, speed_up=10.0)
    assert trace.mean_rate_per_s == pytest.approx(20.0)
    assert trace.duration_s == pytest.approx(600.0)
    assert len(all_times_s(trace)) == pytest.approx(12_000, abs=500)


def test_an_offset_starts_later_and_the_rate_is_that_of_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, "minute,requests\n0,500\n1,10\n2,20\n")
    trace = read_trace(path, 0.5, offset_s=60.0)
    assert trace.duration_s == 120.0
    assert trace.mean_rate_per_s == pytest.approx(0.5)
    assert np.histogram(all_times_s(trace), bins=[0, 60, 120])[0].tolist() == [20, 40]


def test_timestamps_keep_every_request_and_scale_the_clock(tmp_path: Path) -> None:
    path = written(tmp_path, "t_s,context_tokens,generated_tokens\n10,5,1\n11,6,1\n14,7,1\n20,8,1\n")
    assert all_times_s(read_trace(path)).tolist() == [0, 1, 4, 10]
    trace = read_trace(path, 3.0)  # 3 gaps in 10 s made 3 gaps in 1 s
    assert isinstance(trace, TimestampTrace)
    assert all_times_s(trace) == pytest.approx([0, 0.1, 0.4, 1.0])
    assert trace.sizes is not None
    assert trace.sizes.tolist() == [5, 6, 7, 8]
    later = read_trace(path, offset_s=2.0)
    assert isinstance(later, TimestampTrace)
    assert all_times_s(later).tolist() == [0, 6]
    assert later.sizes is not None
    assert later.sizes.tolist() == [7, 8]


def test_timestamps_without_sizes_are_enough(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "t_s\n0\n0\n2\n"))
    assert isinstance(trace, TimestampTrace)
    assert trace.sizes is None
    assert trace.mean_rate_per_s == 1.0


@pytest.mark.parametrize(
    ("text", "bin_s"),
    [
        ("second,requests\n0,3\n1,0\n2,4\n", 1.0),
        ("hour;count;region\n7;3;EU\n8;0;EU\n9;4;EU\n", 3600.0),
        ("100ms\tinvocations\n0\t3\n1\t0\n2\t4\n", 0.1),
        ("timestamp,requests\n1700000000,3\n1700000300,0\n1700000600,4\n", 300.0),
        ("timestamp,requests\n2023-11-16T00:00Z,3\n2023-11-16T00:05Z,0\n2023-11-16T00:10Z,4\n", 300.0),
        ("t_ms,requests\n0,3\n20,0\n40,4\n", 0.02),
    ],
)
def test_counts_come_by_any_unit_that_the_file_tells(tmp_path: Path, text: str, bin_s: float) -> None:
    trace = read_trace(written(tmp_path, text))
    assert isinstance(trace, CountTrace)
    assert trace.bin_s == pytest.approx(bin_s)
    assert trace.counts.tolist() == [3, 0, 4]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
            "2023-11-16 18:15:47.6805900,396,109\n2023-11-16 18:15:49.1805900,879,55\n",
            [374, 396, 879],
        ),
        (
            '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
            '{"timestamp": 1000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
            '{"timestamp": 2500, "input_length": 10, "output_length": 1, "hash_ids": [2]}\n',
            [6758, 7322, 10],
        ),
        ("timestamp\n1700000000000\n1700000001000\n1700000002500\n", None),
        ("t_us;size\n0;1,4\n1000000;2,6\n2500000;3\n", [1, 3, 3]),
        ("t_s\tsize\tnote\n0\t4\t\n1\t5\t\n2.5\t6\t\n", [4, 5, 6]),
        pytest.param(
            f't_s,prompt,size\n0,"{"a, " * 50_000}",4\n1,"",5\n2.5,b,6\n', [4, 5, 6], id="a long prompt"
        ),
        ('"Timestamp_s","Model, its name","Request tokens"\n5,"a, b",7\n6,c,8\n7.5,c,9\n', [7, 8, 9]),
    ],
)
def test_published_traces_are_read_as_they_are(tmp_path: Path, text: str, sizes: list[int] | None) -> None:
    trace = read_trace(written(tmp_path, text))
    assert isinstance(trace, TimestampTrace)
    assert all_times_s(trace) == pytest.approx([0.0, 1.0, 2.5])
    assert (None if trace.sizes is None else trace.sizes.tolist()) == sizes


def test_what_the_file_does_not_tell_can_be_told(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "Timestamp\n0\n1\n2.5\n"), time_unit="s")
    assert all_times_s(trace) == pytest.approx([0.0, 1.0, 2.5])
    counts = read_trace(written(tmp_path, "requests\n3\n4\n"), bin_s=60.0)
    assert isinstance(counts, CountTrace)
    assert counts.bin_s == 60.0


def test_rounded_sizes_are_told(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "t_s,context_tokens\n0,1.4\n1,2\n2,2.6\n"))
    assert isinstance(trace, TimestampTrace)
    assert trace.sizes is not None
    assert trace.sizes.tolist() == [1, 2, 3]
    assert "2 sizes of" in trace.note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no requests"),
        ("minute,requests\n", "holds no requests"),
        ("minute,requests\n0,5\n1,-2\n", "line 3: requests must be a number of at least 0, got -2"),
        ("minute,requests\n0,5\n1,\n", "line 3: expected numbers for minute,requests, got '1,'"),
        ("minute,requests\n0,5\n\n2,5\n", "line 3: expected 2 values, got ''"),
        ("minute,requests\n0,5\n1\n", "line 3: expected 2 values, got '1'"),
        ("minute,requests\n0,5\n1,many\n", "line 3: expected numbers for minute,requests, got '1,many'"),
        ("minute,requests\n0,nan\n", "line 2: requests must be a number of at least 0, got nan"),
        ("minute,requests\n0,5\n1,inf\n", "line 3: requests must be a number of at least 0, got inf"),
        ("minute,requests\n0,5\n1,2.5\n", "line 3: requests must be a whole number, got 2.5"),
        ("minute,requests\n0,5\n2,5\n", "line 3: each minute must follow the one before, got 2"),
        ("minute,requests\n0,0\n1,0\n", "holds fewer than two requests"),
        (
            "colour,smell\n0,5\n",
            "line 1: unknown columns 'colour,smell'; a trace has one of: minute,requests",
        ),
        ("timestamp\n0\n5\n", "line 1: 'timestamp' does not tell its unit; say it with --time-unit"),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,7\nyesterday,7\n",
            "line 3: TIMESTAMP must be a number, or a date and time like 2023-11-16 18:15:46.68",
        ),
        ("time_s;requests\n0;5\n60;7\n90;7\n", "line 4: counts must be 60 s apart like the others, got 90"),
        (
            '{"timestamp": 0, "input_length": 5, "hash_ids": [1]}\nx\n',
            "line 2: expected a JSON object, got 'x'",
        ),
        ("5\n6\n", "line 1: unknown columns '5'"),
        ("t_s\n1\n", "holds fewer than two requests"),
        ("t_s\n1\n3\n2\n", "line 4: t_s must not go back, got 2"),
        ("t_s\n1\n1\n", "all requests come at the same moment"),
        ("t_s,context_tokens\n1,5\n2,-5\n", "line 3: context_tokens must be a number of at least 0, got -5"),
        ("requests\n1\n1e30\n", "line 3: requests must be at most 1,000,000,000, got 1e+30"),
        (
            "t_s,context_tokens\n1,5\n2,1e30\n",
            "line 3: context_tokens must be at most 1,000,000,000, got 1e+30",
        ),
        (b"\xff\xfe\x00\x01", "not a text file"),
    ],
)
def test_a_bad_trace_is_refused_in_a_sentence_with_file_and_line(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match="trace") as caught:
        read_trace(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    counts = written(tmp_path, "minute,requests\n0,5\n1,6\n")
    with pytest.raises(ValueError, match="offset must be within its 120 s, got 120 s"):
        read_trace(counts, offset_s=120.0)
    with pytest.raises(ValueError, match="speed-up of a trace must be above 0, got -1"):
        read_trace(counts, speed_up=-1.0)
    with pytest.raises(ValueError, match=r"cannot read the trace .*missing\.csv: No such file"):
        make_arrivals(str(tmp_path / "missing.csv"), 1.0)
    with pytest.raises(ValueError, match="whose clock the rate sets"):
        read_trace(written(tmp_path, "t_s\n0\n1\n"), 2.0, speed_up=2.0)
    for rate_per_s in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="rate of a trace must be above 0, got"):
            read_trace(counts, rate_per_s)
        with pytest.raises(ValueError, match="length of a trace's bins must be above 0 s, got"):
            read_trace(written(tmp_path, "requests\n5\n6\n"), bin_s=rate_per_s)
    with pytest.raises(ValueError, match="moments is one of ns, us, ms, s, got 'minutes'"):
        read_trace(written(tmp_path, "time\n0\n1\n"), time_unit="minutes")


@pytest.mark.parametrize(
    ("name", "rate_per_s"), [("wikipedia_2007_rpm_12d.csv", 1.0), ("wikipedia_2007_10ms_1h.csv", 50.0)]
)
def test_the_wikipedia_counts_keep_their_shape_at_another_rate(name: str, rate_per_s: float) -> None:
    trace = read_trace(real_trace(name), rate_per_s)
    assert isinstance(trace, CountTrace)
    per_window = len(trace.counts) // 100
    recorded = trace.counts[: 100 * per_window].reshape(100, -1).sum(axis=1)
    window_s = per_window * trace.bin_s
    replayed = np.histogram(all_times_s(trace), bins=100, range=(0, 100 * window_s))[0]
    expected = recorded * trace.copies
    assert np.abs((replayed - expected) / np.sqrt(expected)).max() < 5
    assert replayed.sum() / (100 * window_s) == pytest.approx(rate_per_s, rel=0.01)


def test_the_azure_timestamps_are_nearly_poisson_with_sizes() -> None:
    trace = read_trace(real_trace("azure_llm_2023_conv_requests.csv"), 100.0)
    assert isinstance(trace, TimestampTrace)
    gaps_s = np.diff(all_times_s(trace))
    assert gaps_s.mean() == pytest.approx(0.01)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.09, abs=0.01)
    assert trace.sizes is not None
    assert len(trace.sizes) == len(gaps_s) + 1
