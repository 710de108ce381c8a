"""A server over a tiny model, on a port of its own."""

import math
import subprocess
import threading
from contextlib import ExitStack
from functools import partial

import pytest
from helpers import scripted
from helpers.server_here import opening
from helpers.tab import CHROMIUM, Tab
from helpers.waiting import DEADLINE_S, wait

from pyspec.engine.round import Loop


@pytest.fixture
def serve(tiny_ascii):
    """Starts a server: greedy, lookup, 4 answers at once, 1,024 positions each, unless said otherwise.

    send_buffer: bytes that the kernel takes from the server before a reader has to read; 0 for as many as it likes.
    """
    with opening(tiny_ascii) as start:
        yield start


class Rounds:
    """Rounds of every engine: as many as a test lets be made."""

    def __init__(self):
        self._left, self._changed = 0, threading.Condition()

    def allow(self, n):
        """So many more; math.inf for all."""
        with self._changed:
            self._left += n
            self._changed.notify_all()

    def take(self):
        with self._changed:
            assert self._changed.wait_for(lambda: self._left > 0, DEADLINE_S)
            self._left -= 1
            self._changed.notify_all()

    def wait_taken(self):
        """Until all that were allowed have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._left == 0, DEADLINE_S)


@pytest.fixture
def rounds(serve, monkeypatch):
    """No answer ends before a test lets it: `rounds.allow(n)`; behind the test all go on."""
    made, real = Rounds(), Loop.round

    def round_(*arguments, **more):
        made.take()
        return real(*arguments, **more)

    monkeypatch.setattr(Loop, "round", round_)
    yield made
    made.allow(math.inf)


@pytest.fixture(scope="module")
def serve_all(tiny_ascii):
    """As `serve`, for all tests of a file: for those that neither change a server nor count what it did."""
    with opening(tiny_ascii) as start:
        yield start


@pytest.fixture(scope="module")
def server(serve_all, tmp_path_factory):
    """A server whose model reasons and calls tools as Hermes does."""
    return serve_all(scripted.write(tmp_path_factory.mktemp("model"), "<think>", "<tool_call>"))


@pytest.fixture
def client_of():
    """Opens OpenAI's own client of a server; closed after the test."""
    openai = pytest.importorskip("openai", reason="the extra [test] is not installed")
    opened = partial(openai.OpenAI, api_key="none", max_retries=0)
    with ExitStack() as ends:
        yield lambda server, base="/v1": ends.enter_context(opened(base_url=server.url + base))


@pytest.fixture
def client(server, client_of):
    return client_of(server)


@pytest.fixture
def anthropic_of():
    """Opens Anthropic's own client of a server; closed after the test."""
    anthropic = pytest.importorskip("anthropic", reason="the extra [test] is not installed")
    opened = partial(anthropic.Anthropic, api_key="none", max_retries=0)
    with ExitStack() as ends:
        yield lambda server: ends.enter_context(opened(base_url=server.url))


@pytest.fixture
def script_all(monkeypatch):
    """The script is the whole text, calls of tools among it: a grammar would shape the content alone."""
    from pyspec.grammar.languages import Constraint
    from pyspec.text.answer import Speech

    monkeypatch.setattr(
        Speech, "shape", lambda _speech, _prompt, content, *_: content and Constraint(content)
    )


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The port of a browser's debugging protocol. Each server's pages are another site to it: no test meets another's storage."""
    user = tmp_path_factory.mktemp("chromium")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    process = subprocess.Popen(
        [CHROMIUM, *flags, "--remote-debugging-port=0", f"--user-data-dir={user}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    chosen = user / "DevToolsActivePort"
    wait(lambda: chosen.exists() and chosen.read_text().count("\n"))
    yield int(chosen.read_text().split("\n")[0])
    process.kill()
    process.wait()


@pytest.fixture
def browser(chromium):
    opened = []

    def open_(url):
        opened.append(Tab(chromium, url))
        opened[-1].until("location.protocol === 'http:' && document.readyState === 'complete'")
        return opened[-1]

    yield open_
    for tab in opened:
        tab.close()
