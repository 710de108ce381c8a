"""A page in headless Chromium, driven through its own debugging protocol."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import struct

from helpers.waiting import DEADLINE_S, wait

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Gone(Exception):
    """The page that was asked is being replaced by another: what it would have answered went with it."""


class Tab:
    """One tab: the debugging protocol over a WebSocket, as far as it is needed here."""

    def __init__(self, port, url):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("PUT", f"/json/new?{url}")
        path = json.loads(connection.getresponse().read())["webSocketDebuggerUrl"]
        connection.close()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        key = base64.b64encode(os.urandom(16)).decode()
        where = "/" + path.split("/", 3)[3]
        self._socket.sendall(
            f"GET {where} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._file = self._socket.makefile("rb")
        while self._file.readline() != b"\r\n":
            pass
        self._count = 0

    def evaluate(self, script):
        """The value of an expression in the page; promises are waited for."""
        told = {"expression": script, "awaitPromise": True, "returnByValue": True}
        answer = self.call("Runtime.evaluate", **told)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def call(self, method, **params):
        self._count += 1
        data = json.dumps({"id": self._count, "method": method, "params": params}).encode()
        mask = os.urandom(4)
        head = b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(data)) + mask
        self._socket.sendall(head + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            answer = json.loads(self._frame())
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise Gone(answer["error"])
                return answer["result"]

    def show(self, *, width=1280, height=800, scheme="light"):
        """Take on a screen's size in CSS pixels, and a colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def _frame(self):
        _, size = self._file.read(2)
        if size == 126:
            (size,) = struct.unpack(">H", self._file.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._file.read(8))
        return self._file.read(size)

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
        self._file.close()
        self._socket.close()
