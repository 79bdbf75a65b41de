"""A run is undone by hand as the page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rrl.journal import Journal
from serving_adapter.model_configuration import parse
from serving_adapter.target import open_target
from tests.support.pages import DOCS, blocks
from tests.support.runs.simulated_runs import tuned
from tests.support.servers.fake_triton import CONFIG, Triton, serve


def test_what_a_run_had_found_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "how-to" / "operators-limits.md"
    (program,) = [block.text for block in blocks(page) if "target.restore(" in block.text]
    triton = Triton()
    server, port = serve(triton)
    server.start()
    try:
        target = open_target(f"127.0.0.1:{port}", "m")
        target.connect()
        header, _ = tuned(tmp_path / "simulated", intervals=2)
        header = replace(
            header,
            target=target.address,
            model="m",
            found=target.configuration(),
            found_config_pbtxt=target.config_text(),
        )
        Journal.create(tmp_path / "runs" / "today", header).close()
        target.apply({"instances": 3, "max_batch_size": 8, "max_queue_delay_us": 900})
        target.close()
        assert triton.configs["m"] != parse(CONFIG)
        monkeypatch.chdir(tmp_path)
        exec(program, {})
    finally:
        server.stop(None).wait()
    assert triton.configs["m"] == parse(CONFIG)
