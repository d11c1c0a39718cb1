"""A browser that is talked to: pages are opened, used and looked at through its own protocol, over two pipes."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from browser import FLAGS, the_browser

END = b"\0"
ERRORS = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")


class Page:
    """One page of a browser without a window. errors: what its console and its scripts said, of any level."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, os.fdopen(from_browser, "rb")
        self._number, self._session, self._rest = 0, None, b""
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + END)
        while (answer := self._message()).get("id") != self._number:
            if answer.get("method") in ERRORS:
                self.errors.append(json.dumps(answer["params"]))
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _message(self) -> dict[str, Any]:
        while END not in self._rest:
            found = os.read(self._from.fileno(), 1 << 20)
            if not found:
                raise RuntimeError("the browser has ended")
            self._rest += found
        line, _, self._rest = self._rest.partition(END)
        return json.loads(line)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What a piece of JavaScript gives, its promises kept."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def until(self, condition: str, seconds: int = 100) -> None:
        """Waits for a condition in JavaScript to be true."""
        waiting = f"""new Promise((resolve, reject) => {{
          const end = Date.now() + {1000 * seconds};
          const look = () => ({condition}) ? resolve(true) : Date.now() > end
            ? reject(new Error(document.body.innerText.slice(0, 2000))) : setTimeout(look, 20);
          look();
        }})"""
        self.value(waiting)

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def give_file(self, selector: str, path: Path) -> None:
        """To an input for files."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def download_to(self, folder: Path) -> None:
        session, self._session = self._session, None
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser_page(folder: Path) -> Iterator[Page]:
    """A page in a browser of its own, with its profile in `folder`; skips the test where there is no browser."""
    flags = [the_browser(), *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "--remote-debugging-pipe"]
    (read_there, write_here), (read_here, write_there) = os.pipe(), os.pipe()
    command = ["bash", "-c", f'exec "$@" 3<&{read_there} 4>&{write_there}', "bash", *flags]
    process = subprocess.Popen(
        command, pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read_there), os.close(write_there)
    try:
        page = Page(write_here, read_here)
        yield page
    finally:
        with suppress(RuntimeError, NameError, OSError):
            page._session = None
            page.call("Browser.close")
        os.close(write_here)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
