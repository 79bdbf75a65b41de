"""Drives a headless Chromium by its DevTools protocol, over a pipe: no port, nothing to install but it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "there is no browser to open the report in: install one (Debian: apt-get install chromium), "
    f"so that one of {', '.join(NAMES)} is on the PATH, or leave these tests out with -m 'not browser'"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # no name leads anywhere
    "--proxy-server=127.0.0.1:9",  # nor does an address
    "--remote-debugging-pipe",
)
TIMEOUT_S = 60.0


class BrowserError(Exception):
    """The browser did not do what was asked."""


def executable() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One browser with one tab; `open` a page, then ask it."""

    def __init__(self, folder: Path) -> None:
        path = executable()
        if path is None:
            raise BrowserError(MISSING)
        self._log = (folder / "browser.log").open("wb")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The protocol wants descriptors 3 and 4, which only a shell can be told without a fork hook.
        redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", redirect, "browser", path, *FLAGS, f"--user-data-dir={folder / 'profile'}"]
        self._process = subprocess.Popen(
            [*command, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HOME": str(folder)},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []  # of the console, and exceptions
        self.requests: list[str] = []  # every URL that the page asked for
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(
        self, path: Path, width: int = 1280, height: int = 900, dark: bool = False, mobile: bool = False
    ) -> None:
        """Opens a file; returns when it is loaded."""
        self.complaints.clear()
        self.requests.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=mobile,
        )  # fmt: skip
        self.send("Emulation.setTouchEmulationEnabled", enabled=mobile)
        self.prefer(dark=dark)
        self._loaded = False
        self.send("Page.navigate", url=path.resolve().as_uri())
        self._until(lambda: self._loaded)

    def prefer(self, dark: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression (what a promise comes to) in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x: float, y: float) -> None:
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def without_scripts(self, disabled: bool = True) -> None:
        """For the pages opened next."""
        self.send("Emulation.setScriptExecutionDisabled", value=disabled)

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def pdf(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def close(self) -> None:
        os.close(self._write)  # the browser ends with its pipe
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read)
        self._log.close()

    # The protocol: JSON messages, each ended by a zero byte

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command and its answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = {}

        def answered() -> bool:
            return bool(answer)

        def take(received: dict[str, Any]) -> None:
            if received.get("id") == number:
                answer.update(received)

        self._until(answered, take)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error'].get('message')}")
        return answer.get("result", {})

    def _until(
        self, done: Callable[[], bool], take: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while not done():
            message = self._receive(end_s - time.monotonic())
            self._note(message)
            take(message)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            readable, _, _ = select.select([self._read], [], [], max(0.0, timeout_s))
            received = os.read(self._read, 1 << 16) if readable else b""
            if not received:
                raise BrowserError(f"the browser does not answer; its log is {self._log.name}")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _note(self, message: dict[str, Any]) -> None:
        """Keeps what a page complains of and asks for."""
        method, what = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([a.get("value", a.get("description")) for a in what["args"]]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
