"""Control a browser of the test's own over a pipe (the Chrome DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.waiting import PATIENCE

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
]  # fmt: skip


class Browser:
    """Control one page; `complaints` holds the errors that it raised or wrote to its console."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._rest = b""
        commands, self._to = os.pipe()
        self._from, messages = os.pipe()
        os.set_blocking(self._from, False)
        command = f'exec "$@" 3<&{commands} 4>&{messages}'
        try:
            self._process = subprocess.Popen(
                ["bash", "-c", command, "browser", str(PROGRAM), *OPTIONS, f"--user-data-dir={profile}"],
                pass_fds=(commands, messages), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        finally:
            os.close(commands)
            os.close(messages)
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{part}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._to)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)

    def do(self, method: str, **params: Any) -> Any:
        return self._ask(method, session=self._session, **params)

    def open(self, url: str) -> None:
        answer = self.do("Page.navigate", url=url)
        assert "errorText" not in answer, answer["errorText"]

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page, and return its value."""
        answer = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until a JavaScript expression is true in the page, and return its value."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.value(expression)):
            assert time.monotonic() < deadline, (
                f"never: {expression}\n{self.value('document.body.innerText')}"
            )
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.do("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """Emulate a system whose preferred colour scheme is `light` or `dark`."""
        self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))

    def _ask(self, method: str, session: str = "", **params: Any) -> Any:
        self._number += 1
        number = self._number
        request = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._to, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self._message(deadline)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note_complaint(message)

    def _note_complaint(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(params["entry"]["text"])
            case "Runtime.consoleAPICalled" if params["type"] == "error":
                self.complaints.append(json.dumps(params["args"]))

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert time.monotonic() < deadline, "the browser does not answer"
            try:
                got = os.read(self._from, 1 << 20)
                assert got, "the browser has ended"
                self._rest += got
            except BlockingIOError:
                time.sleep(0.005)
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
