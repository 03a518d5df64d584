"""A headless Chromium, driven over a pipe by its own protocol: nothing to install, no port."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parent / "vendor/axe/axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """Return the path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


# The number of each key that tests press, and the character that it types.
KEYS = {"Enter": (13, "\r"), " ": (32, " "), "Tab": (9, ""), "ArrowLeft": (37, ""), "ArrowDown": (40, "")}


@contextmanager
def window(folder: Path) -> Iterator[Browser]:
    """Open a page and end its browser, whatever happens; without a Chromium the test is skipped."""
    if find() is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    opened = Browser(folder)
    try:
        yield opened
    finally:
        try:
            opened.close()
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            opened.process.kill()
            opened.process.wait()


# A reader doesn't meet what a page hides, but axe-core would walk through all of it: it waits outside meanwhile.
FAULTS = """(async () => {
  const waiting = [...document.querySelectorAll(".view[hidden]")].map((view) => {
    const place = document.createComment("");
    view.replaceWith(place);
    return [place, view];
  });
  try {
    const { violations } = await axe.run({ resultTypes: ["violations"] });
    const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
    return grave.flatMap(({ id, impact, nodes }) => nodes.map(({ target, html, failureSummary }) =>
      `${impact} ${id}: ${target.join(" ")}: ${html.slice(0, 200)}: ${failureSummary}`));
  } finally {
    for (const [place, view] of waiting) place.replaceWith(view);
  }
})()"""


class Browser:
    """One page. `problems` are errors of the page; `requests` the addresses that it asked for."""

    def __init__(self, folder: Path):
        # Chromium reads commands from descriptor 3 and answers on 4.
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        executable = find()
        assert executable is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        command = [executable, *flags, f"--user-data-dir={folder}", "about:blank"]
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        with open(folder / "log.txt", "wb") as log:
            self.process = subprocess.Popen(
                ["/bin/bash", "-c", script, "chromium", *command],
                pass_fds=(theirs_in, theirs_out),
                stdout=log,
                stderr=log,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._numbers, self._session = itertools.count(1), None
        self.problems: list[str] = []
        self.requests: list[str] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its answer, noting what the page tells meanwhile."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        parts = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "Chromium ended"
            parts += byte
        found: dict[str, Any] = json.loads(parts)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        said = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(said["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(said["args"]))
        elif event["method"] == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(said["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Wait until an expression is true, and return it."""
        end = time.monotonic() + seconds
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}; {self.problems}"
            time.sleep(0.02)
        return found

    def click(self, selector: str) -> None:
        """Click, with the mouse, into the middle of an element."""
        # Shown, too: in a view that is still hidden an element lies nowhere.
        self.until(f"(document.querySelector({json.dumps(selector)})?.getClientRects().length ?? 0) > 0")
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **where)

    def type(self, selector: str, text: str) -> None:
        """Type into a field."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key of the keyboard and let it go."""
        code, text = KEYS[key]
        what = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **what, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **what)

    def on(self, selector: str, key: str) -> None:
        """Press a key on an element, once it is there."""
        self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        assert self.run(f"document.activeElement === document.querySelector({json.dumps(selector)})"), selector
        self.press(key)

    def faults(self) -> list[str]:
        """Return what axe-core finds serious or critical in what is shown: rule, element, and what is wrong with it."""
        if self.run("window.axe === undefined"):
            self.run(AXE.read_text(encoding="utf-8") + ";0")
        found: list[str] = self.run(FAULTS)
        return found

    def look(self, width: int, scheme: str) -> None:
        """Set the window's width and the colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.call("Browser.close")
        self._out.close()
        self._in.close()
        self.process.wait(20)
