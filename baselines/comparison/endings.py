"""How the commands of comparisons end other than well: in one sentence, and with its exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from baselines.comparison.comparison import BENCH_FILE
from baselines.comparison.failures import NoResults, RunsFailed
from baselines.comparison.workers import WorkerDied
from rrl.tuning.stop import Output
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.sentences import printable
from serving_adapter.whole_files import errors_name

LOG_WIDTH = 180  # where the output is no terminal
FAILED, INTERRUPTED = 1, 130  # exit codes; wrong use is 2


class ReaderGone(Exception):
    """What is printed goes to a pipe whose reader has ended."""


def make_output() -> Output:
    """Where results are printed. ReaderGone where nobody reads them."""
    console = Output(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    console.reader_gone = _reader_gone
    return console


def warn(sentence: str) -> None:
    """Tells what does not end the command."""
    print(printable(sentence), file=sys.stderr)


@contextmanager
def told_in_a_sentence(out: Path) -> Iterator[None]:
    """Ends the command where the block raises what a user may cause.

    An error of files is wrong use before a comparison in `out` has begun, and a failure afterwards.
    """
    go_on = f"the finished runs are kept in {out}, and the same command goes on with them"
    try:
        with errors_name(out):  # of a full disk, say
            yield
    except ValueError as error:
        fail(in_a_sentence(error))
    except OSError as error:
        if not _has_begun(out):
            fail(in_a_sentence(error))
        _end(f"{in_a_sentence(error)}; {go_on}", FAILED)
    except (RunsFailed, NoResults, WorkerDied, ReaderGone) as error:
        _end(f"{in_a_sentence(error)}; {go_on}", FAILED)
    except KeyboardInterrupt:
        _end(f"interrupted; {go_on}", INTERRUPTED)


def _has_begun(out: Path) -> bool:
    """Whether the folder is one of a comparison, or one of folders of comparisons."""
    return (out / BENCH_FILE).exists() or any(out.glob(f"*/{BENCH_FILE}"))


def _reader_gone() -> None:
    raise ReaderGone("nobody reads what is printed any more")


def _end(sentence: str, code: int) -> NoReturn:
    print(sentence, file=sys.stderr)
    raise SystemExit(code) from None
