"""`pyspec chat` with the default model: on a pseudo-terminal, and as a filter."""

import os
import re
import signal
import sys
from functools import partial

import psutil
import pytest
from helpers.fake_chat import said
from helpers.running import halting, run
from helpers.waiting import DEADLINE_S, wait

import pyspec.cli.chat as module
from pyspec.cli.opening import open_model
from pyspec.engine.handle import Engine

pexpect = pytest.importorskip("pexpect", reason="pseudo-terminals need POSIX")

STATS = r"(\d+) tokens? \|.*?prompt (\d+), (\d+) kept\s"
ENVIRONMENT = {
    **os.environ, "PYSPEC_CHAT_HISTORY": "", "PYSPEC_CHATS": "", "TERM": "xterm", "COLUMNS": "200",
    "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody answers where the cursor is
}  # fmt: skip
# The shell stays when the chat ends, and says how it left the terminal.
SHELL = 'trap : INT TERM; "$@"; echo "rc=$?"; stty -a'
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


def words(target, *options):
    chat = ["chat", "-m", target, "--trust-model", "-t", "1", "-c", "512", "--temp", "0"]
    # an unproved file with extra buffers ends the process where AMX's kernels crash
    return [*chat, "--extra-buffers", "off", "--draft", "lookup", "--stats", *options]


def command(target, *options):
    return [sys.executable, "-m", "pyspec", *words(target, *options)]


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, target, *options, **variables):
        line = ["-c", SHELL, "sh", *command(target, *options)]
        self.child = spawn(line, ENVIRONMENT | variables, dimensions=(50, 200))
        self.wait_for_prompt()

    def wait_for_prompt(self):
        """Everything shown until the line editor is ready, without escapes."""
        self.child.expect_exact("\x1b[0m>>>")
        shown = ANSI.sub("", self.child.before)
        self.child.expect_exact("\x1b[?25h")  # it shows its cursor
        return shown

    def say(self, text):
        self.type(text)
        return self.wait_for_prompt()

    def type(self, text):
        self.child.send(f"{text}\r")
        self.child.expect_exact("\x1b[?2004l")

    def left(self):
        """The exit code of a chat that leaves the terminal as it was: it echoes, reads lines and sends signals."""
        self.child.expect(r"rc=(\d+)")
        code = int(self.child.match.group(1))
        self.child.expect(pexpect.EOF)
        assert {"echo", "icanon", "isig"} <= set(self.child.before.split())
        return code


def spawn(line, environment, **how):
    return pexpect.spawn(
        "/bin/sh", line, env=environment, encoding="utf-8", timeout=DEADLINE_S, **how
    )


def counts(shown):
    """Tokens, prompt tokens and kept ones of the line of statistics."""
    found = re.search(STATS, shown + " ")
    assert found is not None, shown
    tokens, prompt, kept = map(int, found.groups())
    return tokens, prompt, kept


@pytest.fixture
def open_terminal():
    made = []
    yield lambda *words, **variables: made.append(Terminal(*words, **variables)) or made[-1]
    for each in made:
        if each.child.isalive():
            each.child.kill(signal.SIGKILL)
            each.child.wait()  # pexpect gives it a tenth of a second
        each.child.close()


@pytest.fixture
def terminal(open_terminal, smollm2):
    """A chat with answers of at most 8 tokens."""
    return open_terminal(smollm2, "-n", "8")


@pytest.fixture
def tiny_terminal(open_terminal, tiny_ascii):
    """A chat at its first prompt, with a model that takes no time to load."""
    return open_terminal(str(tiny_ascii), "-n", "24")


def test_a_conversation(terminal):
    first, prompt, kept = counts(terminal.say("What is the capital of France?"))
    assert (first, kept) == (8, 0)
    _, longer, kept = counts(terminal.say("And of Italy?"))
    # all but the last token of the first turn: its answer ran into the limit
    assert kept == prompt + first - 1
    assert longer - kept < prompt
    _, prompt, kept = counts(terminal.say("/regen"))
    assert kept >= prompt - 1
    terminal.child.sendeof()
    assert terminal.left() == 0


def test_an_answer_is_stopped(open_terminal, smollm2):
    terminal = open_terminal(smollm2, "-n", "900", **halting(Engine.accept, 20))
    terminal.type("Tell a very long story of Spain.")
    (chat,) = psutil.Process(terminal.child.pid).children()
    wait(lambda: chat.status() == psutil.STATUS_STOPPED)
    terminal.child.sendintr()
    chat.resume()
    shown = terminal.wait_for_prompt()
    assert "(stopped; its text is kept)" in shown
    stopped, before, _ = counts(shown)
    assert 0 < stopped < 900
    terminal.say("/set max_tokens 4")
    _, _, kept = counts(terminal.say("Thank you."))
    assert kept >= before + stopped - 1


def test_a_paste_while_answering_is_one_message(open_terminal, tiny_ascii, tmp_path):
    terminal = open_terminal(str(tiny_ascii), "-n", "300", PYSPEC_CHATS=str(tmp_path))
    terminal.type("hello")
    terminal.child.send("one\n/exit\nthree")
    assert "/exit" not in terminal.wait_for_prompt()
    terminal.say("")
    (path,) = tmp_path.iterdir()
    assert said(path)[::2] == ["hello", "one\n/exit\nthree"]


def test_ctrl_c_twice(tiny_terminal):
    """At the prompt the second one leaves, with 130 and a sound terminal; one that came too late was another first one."""
    for _ in range(20):
        tiny_terminal.child.sendintr()
        if tiny_terminal.child.expect(["quits", r"(?=rc=)"]):
            break
        tiny_terminal.wait_for_prompt()
    assert tiny_terminal.left() == 130


def test_sigterm(tiny_terminal):
    os.killpg(tiny_terminal.child.pid, signal.SIGTERM)
    tiny_terminal.child.expect_exact("\x1b[?2004l")  # bracketed paste is switched off
    assert tiny_terminal.left() == 143


def filtered(target, data, *options):
    return run(*words(target, "--script", *options), stdin=data)


def test_as_a_filter(smollm2):
    done = filtered(smollm2, b"hi\n/set\n/bye\nnever\n", "-n", "12")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert ">>>" not in done.stdout
    answer, *rows = done.stdout.splitlines()
    assert answer
    assert rows[0].split() == ["temperature", "0"]
    assert (" tokens/s | " in done.stderr, " tokens/s | " in done.stdout) == (True, False)
    done = filtered(smollm2, b"/set stats off\nt\xe9\n")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("pyspec: line 2 of stdin is not UTF-8")


def test_control_tokens_in_a_message_are_text(smollm2):
    _, prompt, _ = counts(filtered(smollm2, b"<|im_end|>" * 10 + b"\n", "-n", "1", "-s", "").stderr)
    assert prompt > 40


def test_a_name_of_nothing_loads_nothing(tiny_ascii, monkeypatch):
    loaded = []
    monkeypatch.setattr(module, "open_model", lambda *how: loaded.append(how) or open_model(*how))
    done = filtered(str(tiny_ascii), b"/model tpyo\n/draft tpyo\n/draft none\n")
    assert done.stderr.count("there is no model 'tpyo' here") == 2
    assert [models.draft for models, *_ in loaded] == ["lookup", "none"]


def test_a_pipe_is_one_message(tiny_ascii):
    done = run(*words(str(tiny_ascii), "-n", "4"), stdin=b"a\n/exit\nb")
    assert done.returncode == 0
    assert len(re.findall(r"prompt \d+, 0 kept", done.stderr)) == 1


def test_a_terminal_without_a_screen_is_told_what_is_waited_for(tiny_ascii, tmp_path):
    """As in `pyspec chat | tee log`: all that is typed is one message, and nothing else would say so."""
    out = tmp_path / "out"
    line = ["-c", f'"$@" > {out}', "sh", *command(str(tiny_ascii), "-n", "4")]
    child = spawn(line, ENVIRONMENT)
    child.expect_exact("reading one message from stdin; Ctrl-D ends it")
    child.sendline("hi")
    child.sendeof()
    child.expect(pexpect.EOF)
    assert out.read_text().strip()


def test_chats_are_kept_and_go_on(smollm2, tmp_path):
    chat = partial(run, *words(smollm2, "-n", "4"), PYSPEC_CHATS=str(tmp_path))
    first = chat(stdin=b"Say one.")
    assert first.returncode == 0, first.stderr
    (path,) = tmp_path.iterdir()
    again = chat("--continue", "-s", "Be brief.", stdin=b"Say two.")
    assert ">>> Say one." in again.stderr
    common = ["-t", "1", "-n", "4", "-c", "512", "--temp", "0", "--continue"]
    done = run("generate", "-m", smollm2, *common, "Say three.", PYSPEC_CHATS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    brief, *turns = said(path)
    assert (brief, turns[::2]) == ("Be brief.", ["Say one.", "Say two.", "Say three."])
    assert turns[-1] == done.stdout.removesuffix("\n")
    assert list(tmp_path.iterdir()) == [path]
    before = path.read_bytes()
    done = run("generate", "-m", smollm2, *common, "--no-log", "Four.", PYSPEC_CHATS=str(tmp_path))
    assert (done.returncode, path.read_bytes() == before) == (0, True)
