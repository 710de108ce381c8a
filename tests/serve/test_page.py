"""The page in a browser: headless Chromium, driven through its own debugging protocol."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess

import pytest
from waiting import DEADLINE_S, wait

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


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
        self._count += 1
        told = {"expression": script, "awaitPromise": True, "returnByValue": True}
        data = json.dumps(
            {"id": self._count, "method": "Runtime.evaluate", "params": told}
        ).encode()
        mask = os.urandom(4)
        head = b"\x81" + bytes([0x80 | 126]) + struct.pack(">H", len(data)) + mask
        self._socket.sendall(head + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            answer = json.loads(self._frame())
            if answer.get("id") == self._count:
                assert "exceptionDetails" not in answer["result"], answer
                return answer["result"]["result"].get("value")

    def _frame(self):
        _, size = self._file.read(2)
        if size == 126:
            (size,) = struct.unpack(">H", self._file.read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._file.read(8))
        return self._file.read(size)

    def until(self, script):
        """Wait until an expression is true; its value."""
        found = []
        wait(lambda: found.append(self.evaluate(script)) or found[-1])
        return found[-1]

    def close(self):
        """Let go of it."""
        self._file.close()
        self._socket.close()


@pytest.fixture
def browser(tmp_path):
    """Opens a page; everything ends with the test."""
    opened = []
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    process = subprocess.Popen(
        [CHROMIUM, *flags, "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'user'}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    chosen = tmp_path / "user" / "DevToolsActivePort"
    wait(lambda: chosen.exists() and chosen.read_text().count("\n"))
    port = int(chosen.read_text().split("\n")[0])

    def open_(url):
        opened.append(Tab(port, url))
        opened[-1].until("location.protocol === 'http:' && document.readyState === 'complete'")
        return opened[-1]

    yield open_
    for tab in opened:
        tab.close()
    process.terminate()
    process.wait()


def say(tab, text):
    """Type a message and send it."""
    tab.evaluate(f"document.getElementById('text').value = {json.dumps(text)}")
    tab.evaluate("document.getElementById('ask').requestSubmit()")


DONE = "document.querySelectorAll('.assistant[data-done]').length"


def test_page_answers_and_shows_where_tokens_came_from(serve, browser):
    """A chat of two turns: spans by source with a title each, speed and acceptance, all from the server's own files."""
    server = serve()
    tab = browser(server.url)
    tab.until("document.getElementById('model')?.textContent.startsWith('tiny')")
    tab.evaluate("document.getElementById('temperature').value = 0")
    say(tab, "abcabcabcabcabcabc " * 6)
    tab.until(f"{DONE} === 1")
    spans = tab.evaluate(
        "[...document.querySelectorAll('.assistant span')].map(s => [s.className, s.title, s.textContent])"
    )
    assert {kind for kind, _, _ in spans} <= {"target", "accepted", "relaxed"}
    assert all(title for _, title, _ in spans)
    assert "".join(text for _, _, text in spans) == tab.evaluate(
        "document.querySelector('.assistant').textContent"
    )
    assert tab.evaluate("document.getElementById('speed').textContent").endswith("tok/s")
    assert float(tab.evaluate("document.getElementById('length').textContent")) >= 1
    say(tab, "and then")
    tab.until(f"{DONE} === 2")
    assert tab.evaluate("messages.length") == 4
    outside = "performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).length"
    assert tab.evaluate(outside) == 0


def test_relaxed_tokens_say_their_gap(serve, browser):
    """Coloured, with what the target preferred and by how much, as the server counted them."""
    server = serve()
    tab = browser(server.url)
    tab.evaluate(
        "show(add('assistant', ''), [{text: '<b>x</b>', source: 'relaxed', gap: 0.25, preferred: 'y'}])"
    )
    found = tab.evaluate(
        "(s => [s.title, s.textContent, getComputedStyle(s).color])(document.querySelector('.relaxed:not(#legend *)'))"
    )
    assert found[0] == 'drafted; the target preferred "y" by 0.250 nats'
    assert found[1] == "<b>x</b>"
    assert found[2] != tab.evaluate("getComputedStyle(document.body).color")


def test_stop_ends_the_answer(serve, browser):
    """The button frees the sequence, and the chat goes on."""
    server = serve(draft="none", n_ctx=4096)
    tab = browser(server.url)
    tab.evaluate("document.getElementById('most').value = 3000")
    say(tab, "hello")
    tab.until("document.querySelectorAll('.assistant span').length > 3")
    tab.evaluate("document.getElementById('stop').click()")
    tab.until(f"{DONE} === 1")
    server.wait_idle()
    assert server.batch.stats()["tokens"] < 2900


def test_errors_are_shown(serve, browser):
    """A key that is missing is a sentence on the page."""
    tab = browser(serve(key="secret").url)
    say(tab, "hello")
    shown = tab.until("document.querySelector('.error')?.textContent")
    assert "API key" in shown
    tab.evaluate("document.getElementById('key').value = 'secret'")
    say(tab, "hello")
    tab.until("document.querySelectorAll('.assistant span').length > 0")
