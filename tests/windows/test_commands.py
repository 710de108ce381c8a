"""The commands of README's table on a system that lacks what Windows lacks: none ends in a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

WITHOUT = Path(__file__).with_name("without.py")
SMALL = ("--trust-model", "-c", 256, "-t", 1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has")


def start(cache: Path, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    """Begin a command; its output is what a pipe or a file gets where the code page is 1252."""
    environment = {
        **os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "PYSPEC_CACHE": str(cache), "PYSPEC_CHATS": "",
    }  # fmt: skip
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, str(WITHOUT), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, **{**streams, **options})


def run(cache: Path, *arguments: object, said: bytes = b"", code: int = 0) -> tuple[str, str]:
    """What a command wrote to stdout and stderr, both UTF-8; without a traceback and with this exit code."""
    with start(cache, *arguments) as process:
        out, err = (text.decode("utf-8") for text in process.communicate(said, timeout=240))
    assert "Traceback" not in err, err
    assert process.returncode == code, err
    return out, err


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """One short question."""
    path = tmp_path / "q.jsonl"
    path.write_text('{"question_id": 1, "category": "a", "turns": ["abc abc"]}\n')
    return path


@pytest.fixture
def worded(tiny_folder: Path) -> Path:
    """A model most of whose letters are outside code page 1252."""
    import tiny

    tokens = [*tiny.ASCII, *map(chr, range(0x4E00, 0x4E00 + 400))]
    return tiny.write(tiny_folder / "words.gguf", tokens=tokens)


def test_generate_beside_a_pipe(tiny_ascii: Path, tmp_path: Path) -> None:
    """A prompt and text on stdin, which is no socket."""
    out, _ = run(tmp_path, "generate", "abc", "-m", tiny_ascii, *SMALL, "-n", 8, said=b"def\n")
    assert out.strip()


def test_answers_of_all_letters_reach_a_file(worded: Path, tmp_path: Path) -> None:
    """Whatever the code page, a pipe gets UTF-8."""
    out, _ = run(
        tmp_path, "generate", "--raw", "abc", "-m", worded, *SMALL, "-n", 40, "--temp", 2, "--top-k", 0, "--seed", 1
    )  # fmt: skip
    assert any(ord(letter) > 0x3000 for letter in out)


def test_chat(tiny_ascii: Path, tmp_path: Path) -> None:
    """Lines from a pipe are answered."""
    run(tmp_path, "chat", "-m", tiny_ascii, *SMALL, "-n", 8, said=b"abc\n/quit\n")


def test_batch_ends_goes_on_and_locks(tiny_ascii: Path, tmp_path: Path) -> None:
    """The journal goes when the output is there, although it was open; a second process is refused while one writes."""
    prompts, out = tmp_path / "p.txt", tmp_path / "out.jsonl"
    prompts.write_text("abc\ndef\nghi\n")
    words = ("batch", prompts, "-o", out, "-m", tiny_ascii, *SMALL, "-n", 8)
    run(tmp_path, *words)
    assert len(out.read_text().splitlines()) == 3
    assert [path.name for path in tmp_path.glob("*journal*")] == []


def test_ctrl_break_keeps_what_is_done(tiny_ascii: Path, tmp_path: Path) -> None:
    """It ends a batch as SIGTERM does elsewhere; the same command goes on."""
    prompts, out = tmp_path / "p.txt", tmp_path / "out.jsonl"
    prompts.write_text("abc\n" * 2000)
    words = ("batch", prompts, "-o", out, "-m", tiny_ascii, *SMALL, "-n", 64, "--parallel", 2)
    with start(tmp_path, *words) as process:
        end = time.monotonic() + 120
        while time.monotonic() < end and not any(
            path.stat().st_size > 4000 for path in tmp_path.glob("*journal*")
        ):
            time.sleep(0.1)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=120)
    assert b"Traceback" not in err, err
    assert process.returncode == 143
    assert list(tmp_path.glob("*journal*"))


NEVER_ENDS = {"logit_bias": {"2": -100}}


def where(process: subprocess.Popen[bytes]) -> str:
    """The address of a server, once it says it."""
    assert process.stderr is not None
    line = process.stderr.readline().decode()
    while " on http" not in line:
        assert line, "the server ended"
        line = process.stderr.readline().decode()
    return line.split(" on ")[1].split(": ")[0]


def test_ctrl_break_drains_a_server(tiny_ascii: Path, tmp_path: Path) -> None:
    """As SIGTERM elsewhere: what runs is cut and says so, where the connection would only have ended."""
    with start(
        tmp_path, "serve", "-m", tiny_ascii, "--trust-model", "-c", 16384, "-t", 1, "--port", 0, "--drain", 0,
    ) as process:  # fmt: skip
        url = where(process)
        asked = {"prompt": "abc", "max_tokens": 16000, "stream": True}
        body = json.dumps(asked).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            assert reply.readline().startswith(b"data: ")
            process.send_signal(signal.SIGUSR1)
            said = reply.read()
        _, err = process.communicate(timeout=120)
    assert b"Traceback" not in err, err
    assert said.rstrip().endswith(b"data: [DONE]")
    assert said.count(b'"finish_reason": "length"') + said.count(b'"finish_reason":"length"') == 1


def test_serve(tiny_ascii: Path, tmp_path: Path) -> None:
    """An answer over HTTP."""
    with start(
        tmp_path, "serve", "-m", tiny_ascii, *SMALL, "--port", 0, "--parallel", 2
    ) as process:
        url = where(process)
        body = json.dumps({"prompt": "abc", "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["choices"]
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err, err


def test_the_rest(tiny_ascii: Path, questions: Path, tmp_path: Path) -> None:
    """models, draft, profile, bench, quality, info and completion."""
    run(tmp_path, "models", "add", tiny_ascii, "--name", "mine")
    out, _ = run(tmp_path, "models", "list", "--here")
    assert "mine" in out
    run(tmp_path, "models", "info", "mine")
    run(tmp_path, "models", "rm", "mine")
    run(tmp_path, "draft", tiny_ascii)
    run(tmp_path, "info")
    run(tmp_path, "completion", "bash")
    asked = ("-m", tiny_ascii, *SMALL, "--questions", questions, "-n", 8)
    run(tmp_path, "profile", "--draft", tiny_ascii, *asked, "--draft-max", 3, "--seconds", 1)
    for name in ("bench", "quality"):
        run(tmp_path, name, "--draft", "lookup", *asked, "--out", tmp_path / name, "--warm-up", 1)
