"""Two applications on a cluster, as `serve deploy` puts them there, and requests to one of them."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from scripts.ray_cluster import free_ports
from serving_adapter.target.ray_serve.dashboard import Dashboard
from tests.support.waiting import until

USER_CONFIG = {"max_batch_size": 4, "batch_wait_timeout_s": 0.002, "owner": "the search team"}
MODELS = "tests.support.models.on_ray_serve"
ANSWER_S = 60.0


@dataclass
class RayApplication:
    """`deploy()` first, `end()` last."""

    dashboard: Dashboard
    http_port: int = field(default_factory=lambda: free_ports(1)[0])

    @classmethod
    def on(cls, address: str) -> RayApplication:
        return cls(Dashboard(address, 30.0, Counter()))

    @property
    def address(self) -> str:
        return self.dashboard.address

    def config(self, **of_doubled: Any) -> dict[str, Any]:
        """As a file for `serve deploy` says it. Of `greeting` all is left to the code."""
        doubled = {"name": "Doubled", "num_replicas": 1, "user_config": USER_CONFIG} | of_doubled
        return {
            "proxy_location": "EveryNode",
            "http_options": {"host": "127.0.0.1", "port": self.http_port},
            "applications": [
                {
                    "name": "numbers",
                    "route_prefix": "/double",
                    "import_path": f"{MODELS}:doubled",
                    "deployments": [doubled],
                },
                {"name": "words", "route_prefix": "/greet", "import_path": f"{MODELS}:greeting"},
            ],
        }

    def deploy(self, **of_doubled: Any) -> None:
        self.dashboard.put_applications(self.config(**of_doubled))
        until(lambda: all(app["status"] == "RUNNING" for app in self.apps().values()), "all is deployed")
        until(self._answers, "the proxies know of it")

    def end(self) -> None:
        """Leaves the cluster to others."""
        self.dashboard.put_applications(self.config() | {"applications": []})
        until(lambda: not self.apps(), "nothing is deployed any more")

    def apps(self) -> dict[str, Any]:
        told: dict[str, Any] = self.dashboard.applications()["applications"]
        return told

    def submitted(self) -> dict[str, Any]:
        """The configurations of the applications, as they were sent."""
        return {name: app["deployed_app_config"] for name, app in self.apps().items()}

    def ask(self, number: int = 21) -> None:
        """One request, which is answered."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", f"/double?number={number}")
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != http.client.OK or int(text) != 2 * number:
            raise RuntimeError(f"asked for the double of {number}, got {answer.status} {text[:200]}")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, RuntimeError):
            self.ask()
            return True
        return False

    @contextlib.contextmanager
    def load(self, rate_per_s: float) -> Iterator[RayLoad]:
        """Requests at this rate meanwhile, however long each takes; all are answered at its end."""
        load, over = RayLoad(), threading.Event()
        answered: list[int] = []  # a list may be added to by many threads
        asking: list[threading.Thread] = []

        def ask() -> None:
            try:
                self.ask()
            except Exception as error:
                load.failed.append(str(error))
            answered.append(1)

        def send() -> None:
            began_s = time.monotonic()
            while not over.wait(max(0.0, began_s + len(asking) / rate_per_s - time.monotonic())):
                asking.append(threading.Thread(target=ask))
                asking[-1].start()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield load
        finally:
            over.set()
            sender.join()
            for each in asking:
                each.join()
            load.answered = len(answered)


@dataclass
class RayLoad:
    """What became of the requests."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)
