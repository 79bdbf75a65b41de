"""The small servers, started and ended."""

import pytest

from serving_adapter.target import OpenInferenceTarget
from tests.support.servers.fake_triton import MetricsServer, Triton, serve


@pytest.fixture
def triton():
    servicer = Triton()
    server, port = serve(servicer)
    server.start()
    servicer.address, servicer.server = f"127.0.0.1:{port}", server
    yield servicer
    server.stop(None).wait()


@pytest.fixture
def metrics():
    server = MetricsServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def make_target():
    made = []

    def make(*arguments, **options):
        made.append(OpenInferenceTarget(*arguments, **{"timeout_s": 2.0} | options))
        made[-1].starts_at_once = None  # whatever cores this machine has
        return made[-1]

    yield make
    for target in made:
        target.close()
