"""The commands of README's table on a system that lacks what Windows lacks: none ends in a traceback."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from pathlib import Path

import pytest
from helpers.running import Started, port_of, start
from helpers.waiting import wait
from windows.without import take_away

SMALL = ("--trust-model", "-c", 256, "-t", 1)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="takes away what Linux has")


def main_without(words: list[str]) -> None:
    """The command where everything is missing, and the code page is 1252."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.reconfigure(encoding="cp1252")  # type: ignore[union-attr]
    sys.modules.pop("pyspec._lib", None)  # it has classes of the package that is imported anew
    take_away()
    from pyspec.cli.main import main

    main(words)


def begun(cache: Path, *arguments: object, said: bytes = b"") -> Started:
    return start(*arguments, stdin=said, begin=main_without, PYSPEC_CACHE=str(cache))


def run(cache: Path, *arguments: object, said: bytes = b"", code: int = 0) -> tuple[str, str]:
    """What a command wrote to stdout and stderr, both UTF-8; without a traceback and with this exit code."""
    with begun(cache, *arguments, said=said) as process:
        done, out, err = process.ended()
    assert "Traceback" not in err, err
    assert done == code, err
    return out, err


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question_id": 1, "category": "a", "turns": ["abc abc"]}\n')
    return path


@pytest.fixture
def worded(tiny_folder: Path) -> Path:
    """A model most of whose letters are outside code page 1252."""
    from helpers import tiny

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
    with begun(tmp_path, *words) as process:
        wait(lambda: any(path.stat().st_size > 4000 for path in tmp_path.glob("*journal*")))
        process.send(signal.SIGUSR1)
        code, _, err = process.ended()
    assert "Traceback" not in err, err
    assert code == 143
    assert list(tmp_path.glob("*journal*"))


NEVER_ENDS = {"logit_bias": {"2": -100}}


def test_ctrl_break_drains_a_server(tiny_ascii: Path, tmp_path: Path) -> None:
    """As SIGTERM elsewhere: what runs is cut and says so, where the connection would only have ended."""
    words = ("serve", "-m", tiny_ascii, "--trust-model", "-c", 16384, "-t", 1, "--port", 0)
    with begun(tmp_path, *words, "--drain", 0) as process:
        url = f"http://127.0.0.1:{port_of(process)}"
        asked = {"prompt": "abc", "max_tokens": 16000, "stream": True}
        body = json.dumps(asked).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            assert reply.readline().startswith(b"data: ")
            process.send(signal.SIGUSR1)
            said = reply.read()
        err = process.ended().stderr
    assert "Traceback" not in err, err
    assert said.rstrip().endswith(b"data: [DONE]")
    assert said.count(b'"finish_reason": "length"') + said.count(b'"finish_reason":"length"') == 1


def test_serve(tiny_ascii: Path, tmp_path: Path) -> None:
    """An answer over HTTP."""
    words = ("serve", "-m", tiny_ascii, *SMALL, "--port", 0, "--parallel", 2)
    with begun(tmp_path, *words) as process:
        url = f"http://127.0.0.1:{port_of(process)}"
        body = json.dumps({"prompt": "abc", "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"{url}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.load(reply)["choices"]
        process.terminate()
        err = process.ended().stderr
    assert "Traceback" not in err, err


def test_what_is_told(tiny_ascii: Path, tmp_path: Path) -> None:
    """models, draft, info and completion."""
    run(tmp_path, "models", "add", tiny_ascii, "--name", "mine")
    out, _ = run(tmp_path, "models", "list", "--here")
    assert "mine" in out
    run(tmp_path, "models", "info", "mine")
    run(tmp_path, "models", "rm", "mine")
    run(tmp_path, "draft", tiny_ascii)
    run(tmp_path, "info")
    run(tmp_path, "completion", "bash")


@pytest.mark.parametrize("name", ["profile"])
def test_what_is_measured(tiny_ascii: Path, questions: Path, tmp_path: Path, name: str) -> None:
    """Questions are answered, and a folder or the cache gets what was found."""
    more: dict[str, list[object]] = {
        "profile": ["--draft", tiny_ascii, "--draft-max", 3, "--seconds", 1],
    }
    others = ["--draft", "lookup", "--out", tmp_path / name, "--warm-up", 1]
    asked = ("-m", tiny_ascii, *SMALL, "--questions", questions, "-n", 8)
    run(tmp_path, name, *asked, *more.get(name, others))
