"""Pipes, closed descriptors, full disks and signals: nothing is lost in silence, and nothing ends in a traceback."""

import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest
from helpers.running import run, start
from helpers.systems import full_device
from helpers.waiting import DEADLINE_S, wait

from pyspec.cli import opening
from pyspec.cli.generate import prompt_text
from pyspec.cli.opening import interruptible
from pyspec.errors import OptionError


@pytest.fixture
def piped(monkeypatch):
    """Puts bytes on stdin, as a pipe does; None leaves a device there."""
    with ExitStack() as open_files:

        def pipe(data):
            reader = os.open(os.devnull, os.O_RDONLY)
            if data is not None:
                os.close(reader)
                reader, writer = os.pipe()
                os.write(writer, data)
                os.close(writer)
            monkeypatch.setattr(sys, "stdin", open_files.enter_context(os.fdopen(reader)))

        yield pipe


@pytest.mark.parametrize(("prompt", "file", "stdin", "wanted"), [
    ("Sum:", None, b"a\nb\n", "Sum:\n\na\nb\n"), (None, None, b"a\nb", "a\nb"), ("Sum:", None, None, "Sum:"),
    ("Sum:", None, b"", "Sum:"), ("-", None, b"a", "a"), ("Sum:", b"file\n", None, "Sum:\n\nfile\n"),
    ("Sum:", b"file\n", b"pipe", "Sum:\n\nfile\n\npipe"), (None, b"file", b"pipe", "file\n\npipe"),
])  # fmt: skip
def test_what_is_given_is_joined(piped, tmp_path, prompt, file, stdin, wanted):
    piped(stdin)
    path = tmp_path / "q.txt" if file is not None else None
    if path:
        path.write_bytes(file)
    assert prompt_text(prompt, path, 1000) == wanted
    piped(b"\n")
    with pytest.raises(OptionError, match="pyspec generate"):
        prompt_text(None, None, 1000)


def options(target):
    return ["-m", target, "--trust-model", "-t", 1, "-n", 4, "--temp", 0]


def shell(line, target):
    """A line of bash in which $P is the command, in an interpreter of its own, and $M a tiny model's options."""
    words = " ".join(map(str, options(target)))
    own = {**os.environ, "PYSPEC_CHATS": "", "P": f"{sys.executable} -m pyspec", "M": words}
    return subprocess.run(
        ["bash", "-c", line], env=own, capture_output=True, timeout=120, check=False
    )


BAD = "\udcff"
"""A byte that is not UTF-8, as Python has it from the command line."""


@pytest.mark.parametrize("words", [
    ["generate", "x", "-m", f"{BAD}.gguf"], ["generate", "x", "-f", BAD], ["generate", "x", "--draft", BAD],
    ["models", "pull", BAD], ["models", "info", BAD], ["models", "rm", BAD], [BAD], ["generate", f"--{BAD}", "x"],
    ["chat", "-s", BAD],
])  # fmt: skip
def test_words_that_are_not_utf8(tiny_ascii, words):
    model = options(tiny_ascii) if words[0] in ("generate", "chat") and "-m" not in words else []
    code, stdout, stderr = run(*words, *model)
    assert code in (1, 2)
    assert stdout == ""
    assert "Traceback" not in stderr
    assert stderr.isascii()


@full_device
def test_an_answer_on_a_full_disk(tiny_ascii):
    done = shell("$P generate x $M >/dev/full", tiny_ascii)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1].startswith("pyspec: cannot write to stdout: ")
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@full_device
@pytest.mark.parametrize("line", [
    "generate x", "generate x --json", "generate x --tokens", "models list", "info", "chat", "--help",
])  # fmt: skip
def test_every_command_on_a_full_disk(tiny_ascii, line):
    words = line.split()
    model = options(tiny_ascii) if words[0] in ("generate", "chat") else []
    done = run(*words, *model, stdin=b"hi", stdout="/dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("pyspec: cannot write to stdout: ")


def test_characters_that_stdout_lacks(tiny_ascii):
    """As in a locale of Latin-1: they are escaped, as on stderr, and the program goes on."""
    script = "printf '/system caf\u00e9 \u4f60\\n/system\\n'"
    done = shell(f"{script} | PYTHONIOENCODING=latin-1 $P chat --script $M", tiny_ascii)
    assert (done.returncode, done.stdout) == (0, b"caf\xe9 \\u4f60\n"), done.stderr


def close(*fds):
    """Take descriptors away, as `>&-` does; Python has no stream there then."""
    for fd in fds:
        os.close(fd)
        setattr(sys, ("stdin", "stdout", "stderr")[fd], None)


@pytest.mark.parametrize("more", [[], ["--json"], ["--tokens"]])
def test_an_answer_for_a_closed_stdout(tiny_ascii, more):
    words = ["generate", "x", *options(tiny_ascii), *more]
    with start(*words, before=partial(close, 1)) as child:
        code, _, stderr = child.ended()
    assert code == 1
    assert stderr.splitlines()[-1].startswith("pyspec: cannot write to stdout: ")
    assert "Traceback" not in stderr


@pytest.mark.parametrize("fd", [0, 2])
def test_an_answer_without_stdin_or_stderr(tiny_ascii, fd):
    """It comes all the same, and no note gets into it."""
    with start("generate", "x", *options(tiny_ascii), before=partial(close, fd)) as child:
        code, stdout, stderr = child.ended()
    assert (code, "Traceback" in stderr) == (0, False)
    assert (bool(stdout), "tokens/s" in stdout) == (True, False)


def test_no_descriptor_at_all(tiny_ascii):
    """Files that are opened later do not take the place of stdout."""
    done = shell("$P generate x $M <&- >&- 2>&-; echo rc=$?", tiny_ascii)
    assert done.stdout == b"rc=1\n"


def wait_for_handlers(pid):
    """Until a process handles SIGTERM by itself, which it does while it answers."""
    status, pattern = Path(f"/proc/{pid}/status"), re.compile(r"SigCgt:\s*([0-9a-f]+)")
    wait(lambda: int(pattern.findall(status.read_text())[0], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.skipif(sys.platform != "linux", reason="handlers are seen in /proc")
@pytest.mark.parametrize("new", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["generate", "chat"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_prompt_is_read(smollm2, number, code, name, new):
    words = [name, "-m", smollm2, "-t", "1", "-c", "8192"]
    with start(*words, stdin=b"word " * 7000, new=new) as child:
        wait_for_handlers(child.pid)
        began = psutil.Process(child.pid).cpu_times().user
        wait(lambda: psutil.Process(child.pid).cpu_times().user > began + 0.2)  # some of it is read
        child.send(number)
        ended, stdout, stderr = child.ended()
    assert ended == code
    assert "graph" not in stderr
    assert "decode" not in stderr
    assert stdout.strip() == ""


def test_a_signal_as_soon_as_it_is_handled_cancels(monkeypatch):
    """Nothing is lost between the moment from which a handler has it and that from which somebody watches."""
    cancelled, real = threading.Event(), signal.signal

    def at_once(number, handler):
        old = real(number, handler)
        if number == signal.SIGTERM and not cancelled.is_set():
            signal.raise_signal(number)
        return old

    monkeypatch.setattr(signal, "signal", at_once)
    with interruptible(cancelled.set) as signals:
        assert cancelled.wait(DEADLINE_S)
    assert signals == [signal.SIGTERM]


def stuck(_words):
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    opening.TWICE_S = math.inf  # however late the second comes
    with interruptible(lambda: print("asked", flush=True)):  # noqa: T201
        libc.pthread_mutex_lock(mutex)
        print("in", flush=True)  # noqa: T201
        libc.pthread_mutex_lock(mutex)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_what_never_leaves_c(number, code):
    """Python's own handlers do not run there; the first one only asks the work to end."""
    with start(begin=stuck) as child:
        wait(lambda: "in" in child.stdout)
        child.send(number)
        wait(lambda: "asked" in child.stdout)
        child.send(number)
        assert child.wait() == code
