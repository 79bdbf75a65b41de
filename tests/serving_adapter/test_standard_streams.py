"""No state of its standard streams keeps a process from starting, or a print from returning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = """
import os, sys
from serving_adapter.standard_streams import keep_standard_streams

keep_standard_streams()
lowest = os.open(os.devnull, os.O_RDONLY)
if sys.stdin is not None:
    sys.stdin.read()
for stream in (sys.stdout, sys.stderr):
    print(10_000 * "\\N{LATIN SMALL LETTER Z WITH DOT ABOVE}", file=stream, flush=True)
sys.exit(0 if lowest > 2 else 7)
"""

LINES = 100_000
PATIENCE_S = 60
PRINTS_LINES = f"""
from serving_adapter.standard_streams import keep_standard_streams

keep_standard_streams()
for number in range({LINES}):
    print(number)
"""


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_what_is_opened_never_takes_the_place_of_a_stream_that_is_closed(closed):
    shell = f'exec "$0" -c "$1" {closed}'
    ended = subprocess.run(
        ["bash", "-c", shell, sys.executable, PRINTS], stdin=subprocess.DEVNULL, check=False
    )
    assert ended.returncode == 0


def test_a_full_disk_fails_no_print():
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-c", PRINTS], input=b"", stdout=full, stderr=full)
    assert process.returncode == 0


def test_a_reader_that_is_gone_fails_no_print():
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", PRINTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.close(ours)
        process.communicate(b"")
    assert process.returncode == 0


def test_a_reader_that_does_not_read_holds_nobody_up_and_has_whole_lines():
    command = [sys.executable, "-c", PRINTS_LINES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.wait(PATIENCE_S) == 0
        told = process.stdout.read().splitlines()
    assert 0 < len(told) < LINES
    assert told == [str(number) for number in range(len(told))]


def test_what_an_encoding_lacks_is_escaped():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    process = subprocess.run(
        [sys.executable, "-c", PRINTS], input=b"", capture_output=True, env=environment, check=True
    )
    assert process.stdout == 10_000 * rb"\u017c" + b"\n" == process.stderr
