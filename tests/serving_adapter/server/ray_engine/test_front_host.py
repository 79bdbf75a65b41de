"""The process that a front is a child of tells how that ended, whatever it wrote."""

from __future__ import annotations

import pytest

from serving_adapter.server.fronts.orders import FrontOrder
from serving_adapter.server.ray_engine.front_host import FrontHost
from serving_adapter.server.ray_engine.versions import versions

pytest.importorskip("ray")


def test_what_a_front_writes_need_not_be_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    order = FrontOrder(1, ("--host=é.invalid",), "127.0.0.1", 1, "secret", None)
    status, last_line = FrontHost().run(order.to_text(), "/", versions())
    assert status == 2
    assert last_line.startswith("--host '\N{REPLACEMENT CHARACTER}.invalid' is no address or name")
