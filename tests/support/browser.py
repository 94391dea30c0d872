"""A headless Chromium, spoken to over a pipe."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Browser", "Unusable", "chromium"]


class Unusable(Exception):
    """The browser is installed, but does not start on this machine."""


def chromium() -> str | None:
    """The program, if this machine has it."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


# The browser reads descriptor 3 and writes descriptor 4.
_LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(ours[0], 3)
os.dup2(ours[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page at a time in one browser; `evaluate` runs script in it, `press` types a key."""

    def __init__(self) -> None:
        program = chromium()
        assert program is not None
        self._profile = tempfile.mkdtemp(prefix="holdfast-browser-")
        read_theirs, self._out = os.pipe()
        self._in, write_theirs = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _LAUNCH, str(read_theirs), str(write_theirs), program),
                *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"),
                *("--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe"),
                *(f"--user-data-dir={self._profile}", "about:blank"),
            ],
            pass_fds=(read_theirs, write_theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self._context: str | None = None
        try:
            self._send("Browser.getVersion")
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, AssertionError)):
                raise Unusable(f"{program} does not start here: {error}") from error
            raise

    def open(self, url: str, width: int = 1400, height: int = 900) -> None:
        """Show that page, which knows nothing of the one before."""
        self._session = None
        if self._context is not None:
            self._send("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self._send("Target.createBrowserContext")["browserContextId"]
        place = {"browserContextId": self._context, "width": width, "height": height}
        target = self._send("Target.createTarget", url=url, **place)["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str, timeout_s: float = 60) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self._is_true(script):
            assert time.monotonic() < deadline, f"in vain: {script}"
            time.sleep(0.05)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.evaluate(script))
        except AssertionError as error:
            if "execution context" not in str(error):
                raise
            return False  # the page is not there yet

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37, "Tab": 9}
        more: dict[str, Any] = {"text": "\r"} if key == "Enter" else {}
        common = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self._send("Input.dispatchKeyEvent", type="keyDown", **common, **more)
        self._send("Input.dispatchKeyEvent", type="keyUp", **common)

    def resize(self, width: int, height: int) -> None:
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._send("Emulation.setEmulatedMedia", features=features)

    def print(self) -> bytes:
        """The page as PDF, as a printer would get it."""
        sent = self._send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(sent["data"])

    def picture(self) -> bytes:
        """Take a screenshot, as PNG."""
        return base64.b64decode(self._send("Page.captureScreenshot")["data"])

    def _send(self, method: str, **params: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 120
        while True:
            *whole, self._buffer = self._buffer.split(b"\0")
            for raw in whole:
                found = json.loads(raw)
                if found.get("id") == self._number:
                    assert "error" not in found, found
                    return found["result"]
            readable, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"the browser did not answer to {method}"
            data = os.read(self._in, 1 << 20)
            assert data, f"the browser ended at {method}"
            self._buffer += data

    def close(self) -> None:
        for fd in (self._out, self._in):
            with contextlib.suppress(OSError):
                os.close(fd)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(Path(self._profile), ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
