"""The dashboard of a Ray cluster, which knows its Serve applications, its nodes and its metrics pages.

| path | tells |
|---|---|
| `/api/ray/version` | Ray's version |
| `/api/serve/applications/` | configurations, states, processes; a PUT replaces the configurations |
| `/api/v0/nodes` | the nodes and their processors |
| `/api/prometheus/sd` | where a Prometheus finds the metrics pages |
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from typing import Any

from serving_adapter.address import ServerAddress
from serving_adapter.http_exchange import HttpAnswer, exchanged
from serving_adapter.json_text import parsed
from serving_adapter.target.error import TargetError, TargetLost

DASHBOARD_PORT = 8265  # that Ray gives it
VERSION, APPLICATIONS, NODES, PAGES = (
    "/api/ray/version",
    "/api/serve/applications/",
    "/api/v0/nodes?limit=10000",
    "/api/prometheus/sd",
)
_PUT_S = 60.0  # the controller answers once it has the new configuration
# What stands before Ray, or before Serve, says that it heard nothing: Ray may have taken the question.
_UNANSWERED = (http.client.BAD_GATEWAY, http.client.SERVICE_UNAVAILABLE, http.client.GATEWAY_TIMEOUT)
_MAX_WORDS = 300  # characters of what Ray says in a sentence
_REDACTED = "<redacted>"  # in the place of secrets, where Ray takes the reader for a browser


class Dashboard:
    """Every failure is a TargetError of one sentence; a TargetLost once the cluster is `known`."""

    def __init__(
        self,
        address: str,
        timeout_s: float,
        calls: Counter[str],
        token: str | None = None,
        tls_ca: str | None = None,
        known: bool = False,
    ) -> None:
        """`address` is `ray://HOST:PORT`, or without the scheme. `token`: where the cluster wants one."""
        given = address.strip().removeprefix("ray://").rstrip("/")
        try:
            self.where = ServerAddress.parse(given)
        except ValueError:
            raise TargetError(
                f"a Ray Serve target must be ray://HOST:PORT, with the dashboard's port ({DASHBOARD_PORT} by "
                f"default), got {address!r}"
            ) from None
        self.address = f"ray://{self.where}"
        self.known = known
        self._timeout_s, self._calls, self._tls_ca = timeout_s, calls, tls_ca
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        if token and not (self.where.is_local or tls_ca):
            raise TargetError(
                f"the token would travel unencrypted to {self.address}; give the certificates of a dashboard "
                "behind TLS (--tls-ca), or reach it through a tunnel on this machine (ssh -L)"
            )

    # --- what it is asked --------------------------------------------------------------------------

    def version(self) -> str:
        """Ray's version; TargetError where something else answers."""
        answer = self._answer("GET", VERSION)
        self._check_allowed(answer)
        try:
            told = parsed(answer.body)
            return str(told["ray_version"])
        except (ValueError, KeyError, TypeError):
            raise TargetError(
                f"{self.address} answers, but as no Ray dashboard does: give the address of the head's "
                f"dashboard (port {DASHBOARD_PORT} by default), started by ray start --head with "
                "ray[serve] or ray[default] installed"
            ) from None

    def applications(self) -> dict[str, Any]:
        """All that Serve tells of itself."""
        told = self._json(APPLICATIONS)
        if not isinstance(told, dict) or not isinstance(told.get("applications"), dict):
            raise TargetError(f"{self.address} tells its Serve applications in another form than Ray 2 does")
        return told

    def put_applications(self, config: dict[str, Any]) -> None:
        """Replaces the configuration of all declarative applications; TargetError if Ray refuses it."""
        body = json.dumps(config)
        if _REDACTED in body:
            raise TargetError(
                f"{self.address} hides the environment variables of its applications ({_REDACTED}), which a "
                "change would overwrite: reach the dashboard itself, with no proxy for browsers before it"
            )
        answer = self._answer("PUT", APPLICATIONS, body.encode(), _PUT_S)
        self._check_allowed(answer)
        if self.known and answer.status in _UNANSWERED:
            raise TargetLost(f"{self.address} does not answer for the configuration: {_words(answer)}")
        if answer.status != http.client.OK:
            raise TargetError(f"{self.address} refuses the configuration: {_words(answer)}")

    def cpus_by_node(self) -> dict[str, float]:
        """The processors of each node that is alive, by its id; none where Ray does not tell."""
        try:
            rows = self._json(NODES)["data"]["result"]["result"]
            alive = [row for row in rows if row.get("state") == "ALIVE"]
            return {
                str(row["node_id"]): float(row.get("resources_total", {}).get("CPU", 0.0)) for row in alive
            }
        except TargetLost:
            raise
        except (TargetError, KeyError, TypeError, ValueError, AttributeError):
            return {}

    def metrics_pages(self) -> list[str]:
        """HOST:PORT of every process of the cluster that has a metrics page."""
        told = self._json(PAGES)
        try:
            return list(dict.fromkeys(str(target) for group in told for target in group["targets"]))
        except (KeyError, TypeError):
            raise TargetError(
                f"{self.address} does not tell where its metrics pages are; give them with --metrics-url"
            ) from None

    # --- how ---------------------------------------------------------------------------------------

    def _json(self, path: str) -> Any:
        answer = self._answer("GET", path)
        self._check_allowed(answer)
        if answer.status == http.client.NOT_IMPLEMENTED:
            raise TargetError(
                f"the Ray at {self.address} has no Serve: run pip install 'ray[serve]' there, and start it "
                "anew"
            )
        if answer.status != http.client.OK:
            is_lost = self.known and answer.status >= http.client.INTERNAL_SERVER_ERROR
            kind = TargetLost if is_lost else TargetError
            raise kind(f"{self.address} does not tell {path.partition('?')[0]}: {_words(answer)}")
        try:
            return parsed(answer.body)
        except ValueError:
            raise TargetError(f"{self.address} answers {path} with something else than JSON") from None

    def _check_allowed(self, answer: HttpAnswer) -> None:
        if answer.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise TargetError(
                f"{self.address} wants its cluster's token ({_words(answer)}): give the file that holds it "
                "with --control-key-file"
            )

    def _answer(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float = 0.0
    ) -> HttpAnswer:
        self._calls[f"{method} {path.partition('?')[0]}"] += 1
        scheme = "https" if self._tls_ca else "http"
        headers = self._headers | ({"Content-Type": "application/json"} if body else {})
        timeout_s = timeout_s or self._timeout_s
        try:
            return exchanged(f"{scheme}://{self.where}{path}", timeout_s, method, body, headers, self._tls_ca)
        except http.client.HTTPException as error:
            if self.known:  # its answer ended early, as where its process ends, or a tunnel's other side
                told = " ".join(str(error).split())[:_MAX_WORDS] or type(error).__name__
                raise TargetLost(f"the dashboard {self.address} is lost ({told})") from None
            raise TargetError(
                f"{self.address} answers, but not HTTP: it may be another port of Ray (6379 and 10001 are); "
                f"give the dashboard's, {DASHBOARD_PORT} by default"
            ) from None
        except OSError as error:
            reason = told_reason(error)
            if self.known:
                raise TargetLost(f"the dashboard {self.address} is lost ({reason})") from None
            raise TargetError(
                f"nothing answers at {self.address} ({reason}); give the address of the dashboard that "
                f"ray start --head names, port {DASHBOARD_PORT} by default"
            ) from None
        except ValueError as error:
            raise TargetError(str(error)) from None


def told_reason(error: OSError) -> str:
    """Why nothing answers, as a clause."""
    reason = error.strerror or str(error) or type(error).__name__
    return reason[:1].lower() + reason[1:]


def last_line(text: str) -> str:
    """What a traceback of Ray's says in the end, in one line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return " ".join((lines or [""])[-1].split())[:_MAX_WORDS].rstrip(".; ")


def _words(answer: HttpAnswer) -> str:
    return last_line(answer.body.decode(errors="replace")) or f"HTTP status {answer.status}"
