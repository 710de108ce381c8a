"""A page in headless Chromium, driven through its own debugging protocol."""

import contextlib
import http.client
import json
import shutil

from websockets.sync.client import connect

from helpers.waiting import DEADLINE_S, wait

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Gone(Exception):
    """The page that was asked is being replaced by another: what it would have answered went with it."""


class Tab:
    """One tab: the debugging protocol, as far as it is needed here."""

    def __init__(self, port, url):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/json/new?{url}")
        address = json.loads(connection.getresponse().read())["webSocketDebuggerUrl"]
        connection.close()
        self._ends = contextlib.ExitStack()
        self._socket = self._ends.enter_context(connect(address, max_size=None, proxy=None))
        self._count = 0

    def evaluate(self, script):
        """The value of an expression in the page; promises are waited for."""
        told = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **told)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method, **params):
        self._count += 1
        asked = {"id": self._count, "method": method, "params": params}
        self._socket.send(json.dumps(asked))
        while True:
            answer = json.loads(self._socket.recv(DEADLINE_S))
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise Gone(answer["error"])
                return answer["result"]

    def until(self, script):
        found = [None]

        def holds():
            with contextlib.suppress(Gone):
                found.append(self.evaluate(script))
                return found[-1]
            return False

        wait(holds)
        return found[-1]

    def reload(self):
        """Load the page anew, and wait for it."""
        self.evaluate("window.old = true")
        self.call("Page.reload")
        self.until("!window.old && document.readyState === 'complete'")

    def close(self):
        self.call("Page.close")
        self._ends.close()
