"""`pyspec batch` as people run it: exit codes, one sentence for a failure, and nothing lost."""

import json
import random
import re
import resource
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.running import run, start

from pyspec.batch import Batch
from pyspec.batch.journal import Journal

PLAIN = ["--draft", "none", "--verify", "strict", "--temp", "0", "--raw", "-t", "1", "-c", "256"]


class Command(NamedTuple):
    """`pyspec batch` with the tiny model, in a folder of its own."""

    words: list[object]
    folder: Path

    def __call__(self, *arguments):
        return run("batch", *self.words, *arguments, cwd=self.folder)

    def start(self, *arguments, **how):
        return start("batch", *self.words, *arguments, cwd=self.folder, **how)


@pytest.fixture
def pyspec(tmp_path, tiny_target):
    return Command(["-m", tiny_target, *PLAIN], tmp_path)


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "in.txt").write_text("abc\nhello\nonce upon\nthe end\n")
    return "in.txt"


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_answers_go_to_the_file_and_all_else_to_stderr(pyspec, prompts, tmp_path):
    done = pyspec(prompts, "-o", "out.jsonl", "-n", "8")
    assert (done.returncode, done.stdout) == (0, "")
    counts = r"records  4 answered\nended by 4 length\ntokens   32 in \d+\.\d s: \d+\.\d tokens/s\ndrafts   none checked\n"
    assert re.search(counts, done.stderr)
    found = lines(tmp_path / "out.jsonl")
    assert [line["id"] for line in found] == [f"in.txt:{i}" for i in range(1, 5)]
    assert all(line["usage"]["completion_tokens"] == 8 for line in found)
    done = pyspec(prompts, "-o", "again.jsonl", "-n", "8", "--json", "--parallel", "2")
    facts = json.loads(done.stdout)  # the summary
    assert (facts["done"], facts["failed"], facts["tokens"], facts["parallel"]) == (4, 0, 32, 2)
    loose = ("--verify", "margin", "--gap", "9", "--theta", "0", "--draft", "lookup")
    done = pyspec(prompts, "-o", "loose.jsonl", "-n", "60", "--length", "fixed:2", *loose)
    assert re.search(r"drafts   \d+ of \d+ checked tokens accepted, \d+ relaxed\n", done.stderr)


def test_failed_records_end_with_3(pyspec, tmp_path):
    long = b'{"prompt": "%s"}' % (b"x" * 400)
    data = b'{"prompt": "abc"}\n{bad\n{"prompt": "\xff"}\n%s\n{"prompt": "b"}' % long
    (tmp_path / "in.jsonl").write_bytes(data)
    done = pyspec("in.jsonl", "-o", "out.jsonl", "-n", "4")
    errors = [line["error"] and line["error"]["type"] for line in lines(tmp_path / "out.jsonl")]
    assert done.returncode == 3
    assert "2 answered, 3 failed" in done.stderr
    assert errors == [None, "InputError", "InputEncoding", "ContextOverflow", None]
    again = pyspec("in.jsonl", "-o", "out.jsonl", "-n", "4")
    assert again.returncode == 3
    assert "already has all 5 records; 3 failed" in again.stderr
    again = pyspec("in.jsonl", "-o", "out.jsonl", "-n", "4", "--retry-failed")
    assert "0 answered, 3 failed, 2 before\n" in again.stderr


def test_the_first_failures_are_named(pyspec, tmp_path):
    (tmp_path / "in.jsonl").write_text("{bad\n" * 5)
    said = pyspec("in.jsonl", "-o", "out.jsonl", "-n", "4").stderr
    failed = [line.partition(" failed: ")[0] for line in said.splitlines() if " failed: " in line]
    assert failed == [f"in.jsonl:{i}" for i in (1, 2, 3)]
    assert said.count("more records failed") == 1


def test_an_empty_input_has_failed(pyspec, tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(5):
        (tmp_path / "in" / f"{i}.txt").write_text("\n" * i)
    code, _, said = pyspec("in", "-o", "out/")
    assert code == 3
    assert said.count("is empty") == 5  # text files have room for answers alone: all are named
    assert "see the output" not in said


@pytest.mark.parametrize(("arguments", "status", "says"), [
    (["missing.txt", "-o", "o.jsonl"], 2, "missing.txt"),
    (["in.txt"], 2, "--output"),
    (["in.jsonl", "-o", "in.jsonl"], 2, "is an input"),
    (["in.txt", "-o", "/dev/null"], 2, "not a regular file"),
    (["in.txt", "-o", "model.gguf", "--overwrite"], 2, "no known ending"),
    (["in.txt", "-o", "o.csv", "--with-prompt"], 2, "--with-prompt is for JSON lines"),
    (["in.txt", "-o", "nowhere/o.jsonl"], 2, "there is no folder nowhere"),
    (["in.txt", "-o", "nowhere/o.csv"], 2, "there is no folder nowhere"),
    (["in.txt", "-o", "o.jsonl", "--parallel", "0"], 2, "--parallel"),
    (["in.txt", "-o", "o.jsonl", "--template", "in.txt"], 2, "{text}"),
    (["in.txt", "-o", "o.jsonl", "--temp", "nan"], 2, "--temp"),
    (["in.txt", "-o", "o.jsonl", "--length", "fixed:1000"], 2, "draft length"),
    (["in.txt", "-o", "o.jsonl", "--stop", ""], 2, "stop"),
])  # fmt: skip
@pytest.mark.usefixtures("prompts")
def test_expected_errors_are_one_sentence(pyspec, tmp_path, arguments, status, says):
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}')
    done = pyspec(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# -- interruptions -------------------------------------------------------------------------------------

RECORDS, TOKENS = 80, 40


@pytest.fixture
def many(tmp_path):
    rng = random.Random(1)  # noqa: S311
    texts = ("".join(rng.choices("abcdefghij ", k=rng.randint(1, 60))) for _ in range(RECORDS))
    (tmp_path / "many.txt").write_text("".join(f"{text.strip() or 'a'}\n" for text in texts))
    return ["many.txt", "-n", str(TOKENS), "--parallel", "4"]


@pytest.fixture
def undisturbed(pyspec, many, tmp_path):
    assert pyspec(*many, "-o", "whole.jsonl").returncode == 0
    return (tmp_path / "whole.jsonl").read_bytes()


@pytest.fixture
def halted(pyspec, many):
    """Starts a run that stops itself with 12 records done; SIGCONT lets it go on."""
    with ExitStack() as ends:

        def start_(*, new=False):
            process = pyspec.start(*many, "-o", "out.jsonl", new=new, halts=(Journal.append, 13))
            ends.enter_context(process).halted()
            return process

        yield start_


@pytest.mark.parametrize("moments", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_kill_at_random_moments_loses_and_doubles_nothing(
    pyspec, many, undisturbed, tmp_path, moments
):
    """SIGKILL and the same command again, over and over: the file has the bytes of an undisturbed run.

    Every other kill is in the middle of a write or a decode, or wherever the moment falls; the others hold the run.
    """
    rng = random.Random(2)  # noqa: S311
    for i in range(moments):
        out = f"out{i // 5}.jsonl"  # five kills to a run, which leave records to answer
        halts = (Journal.append, rng.randint(2, RECORDS // 6))
        with pyspec.start(*many, "-o", out, halts=halts) as process:
            process.halted()
            if i % 2:
                process.send(signal.SIGCONT)
                time.sleep(rng.random() * 0.02)
            process.send(signal.SIGKILL)
            assert i % 2 or process.wait() == -signal.SIGKILL
    for out in {f"out{i // 5}.jsonl" for i in range(moments)}:
        assert pyspec(*many, "-o", out).returncode == 0
        assert (tmp_path / out).read_bytes() == undisturbed


@pytest.mark.parametrize(
    ("number", "status", "new"), [(signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)]
)
def test_signal_keeps_what_is_done(
    pyspec, many, halted, undisturbed, tmp_path, number, status, new
):
    process = halted(new=new)
    process.send(number)
    process.send(signal.SIGCONT)
    code, _, stderr = process.ended()
    assert code == status
    assert "Run the same command again to resume." in stderr
    assert "Traceback" not in stderr
    assert not re.search(r"llama_|ggml|graph_compute|decode:", stderr)  # nor llama.cpp's own lines
    assert 10 < (tmp_path / "out.jsonl.journal").read_bytes().count(b"\n") < RECORDS
    assert pyspec(*many, "-o", "out.jsonl").returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_disk_full_ends_with_a_sentence(pyspec, many, undisturbed, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))

    with pyspec.start(*many, "-o", "out.jsonl", before=limit) as full:
        code, _, stderr = full.ended()
    assert code == 1
    assert "records are kept" in stderr
    assert "Traceback" not in stderr
    assert pyspec(*many, "-o", "out.jsonl").returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == undisturbed


def test_what_lies_where_is_said_once(pyspec, monkeypatch, prompts):
    line = "3 of 3 layers of target on CARD0 (1.0 GB left)"
    monkeypatch.setattr(Batch, "placed", property(lambda _: line))
    done = pyspec(prompts, "-o", "out.jsonl", "-n", "4")
    assert (done.returncode, done.stderr.count(line)) == (0, 1)
