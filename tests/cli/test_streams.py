"""Pipes, closed descriptors, full disks and signals: nothing is lost in silence, and nothing ends in a traceback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from systems import full_device
from waiting import DEADLINE_S, wait

from pyspec.cli.streams import interruptible, prompt_text
from pyspec.errors import OptionError

ENVIRONMENT = {**os.environ, "PYSPEC_CHATS": ""}


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], None]]:
    """Puts bytes on stdin, as a pipe does; None leaves a device there."""
    with ExitStack() as open_files:

        def pipe(data: bytes | None) -> None:
            reader = os.open(os.devnull, os.O_RDONLY)
            if data is not None:
                os.close(reader)
                reader, writer = os.pipe()
                os.write(writer, data)
                os.close(writer)
            monkeypatch.setattr(sys, "stdin", open_files.enter_context(os.fdopen(reader)))

        yield pipe


@pytest.mark.parametrize(
    ("prompt", "file", "stdin", "wanted"),
    [
        ("Sum:", None, b"a\nb\n", "Sum:\n\na\nb\n"),
        (None, None, b"a\nb", "a\nb"),
        ("Sum:", None, None, "Sum:"),
        ("Sum:", None, b"", "Sum:"),
        ("-", None, b"a", "a"),
        ("Sum:", b"file\n", None, "Sum:\n\nfile\n"),
        ("Sum:", b"file\n", b"pipe", "Sum:\n\nfile\n\npipe"),
        (None, b"file", b"pipe", "file\n\npipe"),
    ],
)
def test_what_is_given_is_joined(
    piped, tmp_path: Path, prompt: str, file: bytes, stdin: bytes, wanted: str
) -> None:
    """Prompt, file and pipe, in this order, with a blank line between; nothing is dropped."""
    piped(stdin)
    path = tmp_path / "q.txt" if file is not None else None
    if path:
        path.write_bytes(file)
    assert prompt_text(prompt, path, 1000) == wanted


def test_nothing_is_no_prompt(piped) -> None:
    """An empty pipe alone is refused with how to give a prompt."""
    piped(b"\n")
    with pytest.raises(OptionError, match="pyspec generate"):
        prompt_text(None, None, 1000)


def shell(line: str, target: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A line of bash in which $P is the command and $M a tiny model's options."""
    environment = {
        **ENVIRONMENT,
        "P": f"{sys.executable} -m pyspec",
        "M": f"-m {target} --trust-model -t 1 -n 4 --temp 0",
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", line], env=environment, capture_output=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "line",
    [
        r"$P generate x -m $'\xff.gguf'", r"$P generate x -f $'\xff'", r"$P generate x --draft $'\xff' $M",
        r"$P models path $'\xff'", r"$P models info $'\xff'", r"$P models rm $'\xff'", r"$P $'\xff'",
        r"$P generate --$'\xff' x", r"$P chat --load $'\xff' $M", r"$P chat -s $'\xff' $M",
    ],
)  # fmt: skip
def test_words_that_are_not_utf8(tiny_ascii: Path, line: str) -> None:
    """A sentence that shows them escaped, and a failure."""
    done = shell(f"{line} </dev/null", tiny_ascii)
    assert done.returncode in (1, 2)
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    done.stderr.decode("ascii")


@pytest.mark.parametrize("arguments", ["x $M", "x $M --json", "x $M --tokens"])
@pytest.mark.parametrize("redirection", [pytest.param(">/dev/full", marks=full_device), ">&-"])
def test_an_answer_that_cannot_be_written(
    tiny_ascii: Path, arguments: str, redirection: str
) -> None:
    """A full disk or a closed stdout is one sentence and a failure."""
    done = shell(f"$P generate {arguments} {redirection}", tiny_ascii)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1].startswith("pyspec: cannot write to stdout: ")
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@full_device
@pytest.mark.parametrize("line", ["$P models list", "$P info", "echo hi | $P chat $M", "$P --help"])
def test_other_commands_on_a_full_disk(tiny_ascii: Path, line: str) -> None:
    """The same for lists and chats."""
    done = shell(f"{line} >/dev/full", tiny_ascii)
    assert done.returncode == 1
    assert b"cannot write to stdout" in done.stderr
    assert b"Traceback" not in done.stderr


def test_stdin_that_is_closed(tiny_ascii: Path) -> None:
    """With a prompt nobody misses it."""
    done = shell("$P generate x $M <&-", tiny_ascii)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert done.stdout


def test_stderr_that_is_closed(tiny_ascii: Path) -> None:
    """The answer comes all the same, and no note gets into it."""
    done = shell("$P generate x $M 2>&-", tiny_ascii)
    assert done.returncode == 0
    assert b"tokens/s" not in done.stdout


def test_no_descriptor_at_all(tiny_ascii: Path) -> None:
    """Files that are opened later do not take the place of stdout."""
    done = shell("$P generate x $M <&- >&- 2>&-; echo rc=$?", tiny_ascii)
    assert done.stdout == b"rc=1\n"


def wait_for_handlers(pid: int) -> None:
    """Until a process handles SIGTERM by itself, which it does while it answers."""
    status, pattern = Path(f"/proc/{pid}/status"), re.compile(r"SigCgt:\s*([0-9a-f]+)")
    wait(lambda: int(pattern.findall(status.read_text())[0], 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.skipif(sys.platform != "linux", reason="handlers are seen in /proc")
@pytest.mark.parametrize("name", ["generate", "chat"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_prompt_is_read(smollm2: str, number: int, code: int, name: str) -> None:
    """It ends the command in a moment, with llama.cpp's own log lines kept out, however long the prompt is."""
    command = [sys.executable, "-m", "pyspec", name, "-m", smollm2, "-t", "1", "-c", "8192"]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.write(b"word " * 7000)
    child.stdin.close()
    child.stdin = None
    wait_for_handlers(child.pid)
    time.sleep(1)  # some of the prompt is read
    child.send_signal(number)
    out, errors = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == code
    assert b"graph" not in errors
    assert b"decode" not in errors
    assert out.strip() == b""


def test_a_signal_as_soon_as_it_is_handled_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost between the moment from which a handler has it and that from which somebody watches."""
    cancelled, real = threading.Event(), signal.signal

    def at_once(number: int, handler: Any) -> Any:
        old = real(number, handler)
        if number == signal.SIGTERM and not cancelled.is_set():
            signal.raise_signal(number)
        return old

    monkeypatch.setattr(signal, "signal", at_once)
    with interruptible(cancelled.set) as signals:
        assert cancelled.wait(DEADLINE_S)
    assert signals == [signal.SIGTERM]


STUCK = """
import ctypes
from pyspec.cli.streams import interruptible
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
with interruptible(lambda: None):
    libc.pthread_mutex_lock(mutex)
    print("in", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_what_never_leaves_c(number: int, code: int) -> None:
    """Python's own handlers do not run there; the first one only asks the work to end."""
    words = [sys.executable, "-c", STUCK]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(2):
            child.send_signal(number)
            time.sleep(0.4)
        assert child.wait(DEADLINE_S) == code
