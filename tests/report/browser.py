"""Chromium by remote control: the WebDriver protocol, spoken to Debian's chromium-driver."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The name by which the protocol marks elements."""
KEYS = {"left": "\ue012", "up": "\ue013", "right": "\ue014", "down": "\ue015", "escape": "\ue00c", "tab": "\ue004"}


def absent() -> str:
    """Which programs are missing; "" if none is."""
    return ", ".join(program for program in PROGRAMS if shutil.which(program) is None)


class Browser:
    """One window.

    Arguments:
        folder: empty, for the browser's own files.
    """

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "driver.log").open("wb")
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=self._log, cwd=folder
        )
        assert self._driver.stdout is not None
        try:
            self._address = f"http://127.0.0.1:{self._port()}"
            options = {
                "binary": shutil.which("chromium"),
                "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"],
            }
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._address += f"/session/{session['sessionId']}"
        except BaseException:
            self._stop()
            raise

    def close(self) -> None:
        self._ask("DELETE", "")
        self._stop()

    def open(self, page: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Show a file in a window of this size, for someone who prefers this colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for kind in ("browser", "performance"):
            self.logged(kind)  # of earlier pages
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})
        # curves are drawn when the page knows its size, which is after it was loaded
        frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
        self._ask("POST", "/execute/async", {"script": frames, "args": []})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> dict[str, str]:
        return self._ask("POST", "/element", {"using": "css selector", "value": selector})

    def click(self, selector: str) -> None:
        self._ask("POST", f"/element/{self.find(selector)[ELEMENT]}/click", {})

    def press(self, selector: str, *keys: str) -> None:
        """Give an element the focus and press keys."""
        element = self.find(selector)
        self.run("arguments[0].focus()", element)
        self._ask("POST", f"/element/{element[ELEMENT]}/value", {"text": "".join(KEYS.get(key, key) for key in keys)})

    def drag(self, selector: str, *places: tuple[float, float]) -> None:
        """Press the mouse at the first place, shares of width and height of an element, and let go at the last."""
        first, *others = self._moves(selector, places)
        self._mouse([first, {"type": "pointerDown", "button": 0}, *others, {"type": "pointerUp", "button": 0}])

    def hover(self, selector: str, x: float, y: float) -> None:
        """Move the mouse over an element, to shares of its width and height."""
        self._mouse(self._moves(selector, [(x, y)]))

    def wait(self, condition: Callable[[], bool], seconds: float = 5.0) -> bool:
        """Whether something comes true in time."""
        end = time.monotonic() + seconds
        while not (found := condition()) and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def logged(self, kind: str) -> list[str]:
        """Messages since the last call: of the "browser" console, or of "performance", requests among them."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": kind})]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        events = [json.loads(text)["message"] for text in self.logged("performance")]
        sent = [each for each in events if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"] for each in sent]

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def pdf(self, file: Path) -> None:
        """The page as it is printed."""
        printed = self.command("Page.printToPDF", preferCSSPageSize=False, printBackground=False)
        file.write_bytes(base64.b64decode(printed["data"]))

    def _moves(self, selector: str, places: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
        left, top, width, height = self.run(
            "const e = arguments[0]; e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]",
            self.find(selector),
        )
        points = [{"x": round(left + x * width), "y": round(top + y * height)} for x, y in places]
        return [{"type": "pointerMove", "duration": 0, **point} for point in points]

    def _mouse(self, actions: list[dict[str, Any]]) -> None:
        mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions}
        self._ask("POST", "/actions", {"actions": [mouse]})

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(rb"started successfully on port (\d+)", line):
                return int(found[1])
        raise RuntimeError("chromedriver did not start")

    def _ask(self, method: str, path: str, content: dict[str, Any] | None = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._address + path, data, method=method)
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{path}: {json.load(error)['value']['message']}") from None

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait(timeout=20)
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._log.close()
