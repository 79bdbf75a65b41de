"""The site builds without a warning, and its pages fetch nothing from the network."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import CHECKOUT

pytestmark = pytest.mark.skipif(find_spec("material") is None, reason="`make setup` installs mkdocs-material")

FETCHED = re.compile(
    r"""<(?:script|img|iframe|link\s[^>]*stylesheet)[^>]*?(?:src|href)=["']?(https?://[^"'\s>]+)"""
)


def test_the_site_builds_and_is_whole(tmp_path: Path) -> None:
    asked = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=200, cwd=CHECKOUT)
    assert ended.returncode == 0, ended.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert pages
    assert not {url for page in pages for url in FETCHED.findall(page.read_text(encoding="utf-8"))}
