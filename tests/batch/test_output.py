"""The output: in the order of the inputs, whole or not at all, and nothing else overwritten."""

from __future__ import annotations

import json
import os
import resource
import signal

import pytest

from pyspec.batch.files import FileRun
from pyspec.batch.output import open_output
from pyspec.batch.reading import Reading
from pyspec.batch.records import Failure
from pyspec.batch.results import Result, public
from pyspec.batch.sources import find_sources, read_sources
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch


class Fake:
    """Answers records at once, last one first; those that contain "bad" fail."""

    def __init__(self, **identity):
        self.asked = []
        self._identity = {"target": "t", **identity}

    def identity(self):
        """One fact."""
        return self._identity

    def expect(self, _records):
        """Nothing to make room for."""

    def stats(self):
        """None."""
        return {}

    def run_indexed(self, records):
        """Results in reverse."""
        for i, record in reversed(list(records)):
            self.asked.append(i)
            error = Failure("InputError", "bad") if "bad" in record.prompt else None
            text = "" if error else record.prompt.upper()
            yield Result(index=i, id=record.id, prompt_sha256=record.sha256, text=text, error=error)


@pytest.fixture
def go(tmp_path):
    """Runs `inputs` into `out` with a Fake; returns it and its summary."""

    def go_(inputs, out, per="line", fake=None, stop_after=None):
        sources = find_sources([str(tmp_path / name) for name in inputs])
        records = list(read_sources(sources, Reading(per)))
        fake = fake or Fake()
        with FileRun(fake, records, open_output(str(tmp_path) + "/" + out, sources), per) as run:
            seen = []

            def report(result):
                seen.append(result)
                if len(seen) == stop_after:
                    raise KeyboardInterrupt

            run.answer(report)
            run.assemble()
        return fake, run.summary

    return go_


@pytest.fixture
def lines(tmp_path):
    """in.txt: five lines, one of which fails."""
    (tmp_path / "in.txt").write_text("a\nb\nbad\nd\n\ne\n")
    return "in.txt"


def test_output_is_in_the_order_of_the_inputs(go, lines, tmp_path):
    """Records that finished last to first stand first to last, failed ones among them; the journal is gone."""
    _, summary = go([lines], "out.jsonl")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in found] == ["A", "B", "", "D", "E"]
    assert found[2]["error"] == {"type": "InputError", "message": "bad"}
    assert (summary.done, summary.failed) == (5, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.jsonl"]


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_interrupted_run_goes_on(go, lines, tmp_path, stop_after):
    """What was finished is not asked again, and the file has the bytes of an undisturbed run."""
    go([lines], "whole.jsonl")
    with pytest.raises(KeyboardInterrupt):
        go([lines], "out.jsonl", stop_after=stop_after)
    assert not (tmp_path / "out.jsonl").exists()
    fake, summary = go([lines], "out.jsonl")
    assert (len(fake.asked), summary.kept) == (5 - stop_after, stop_after)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_finished_run_is_not_run_again(go, lines, tmp_path):
    """The same command once more asks nothing, and still knows what failed."""
    go([lines], "out.jsonl")
    before = (tmp_path / "out.jsonl").read_bytes()
    fake, summary = go([lines], "out.jsonl")
    assert (fake.asked, summary.kept, summary.failed) == ([], 5, 1)
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize("change", ["input", "model", "foreign"])
def test_other_output_is_not_overwritten(go, lines, tmp_path, change):
    """A file that is not the result of this very run stays as it is."""
    go([lines], "out.jsonl")
    fake = Fake(target="other") if change == "model" else None
    if change == "input":
        (tmp_path / "in.txt").write_text("changed\n")
    if change == "foreign":
        (tmp_path / "out.jsonl").write_text("my notes")
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(ResumeMismatch):
        go([lines], "out.jsonl", fake=fake)
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("per", "text"), [("line", "A\nB\n\nD\nE\n"), ("paragraph", "A\nB\nBAD?\n\nE\n\n")]
)
def test_folder_gets_a_file_an_input(go, tmp_path, per, text):
    """One answer a line or a paragraph, under the input's name; a failed record leaves its place empty."""
    (tmp_path / "in").mkdir()
    bad = "bad" if per == "line" else "Bad?".upper()
    (tmp_path / "in" / "x.txt").write_text(
        f"a\nb\n{bad}\n" + ("d\n" if per == "line" else "") + "\ne\n"
    )
    go(["in"], "out/", per)
    assert (tmp_path / "out" / "x.txt").read_text() == text


def test_folder_keeps_the_tree(go, tmp_path):
    """Files of subfolders go into subfolders, per file."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "x.txt").write_text("one\ntwo\n")
    go(["in"], "out/", "file")
    assert (tmp_path / "out" / "sub" / "x.txt").read_text() == "ONE\nTWO\n"


def test_two_inputs_of_one_name_are_refused(go, tmp_path):
    """Neither may overwrite the other's answers."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("x\n")
    with pytest.raises(InputError, match="two inputs"):
        go(["a/x.txt", "b/x.txt"], "out/")


@pytest.mark.parametrize("out", ["in.txt", "link.jsonl", "pipe.jsonl", "in/"])
def test_odd_outputs_are_refused(go, lines, tmp_path, out):
    """An input, a link, a pipe, the inputs' own folder: nothing is written there."""
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("x\n")
    with pytest.raises(InputError):
        go(["in"] if out == "in/" else [lines], out)
    assert (tmp_path / "in.txt").read_text() == "a\nb\nbad\nd\n\ne\n"
    assert not (tmp_path / "elsewhere").exists()


def test_disk_full_while_assembling_keeps_the_journal(go, lines, tmp_path):
    """The output is not there in part; with room again the same command only writes it."""
    with pytest.raises(KeyboardInterrupt):
        go([lines], "out.jsonl", stop_after=5)
    size = (tmp_path / "out.jsonl.journal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(BatchWriteError, match="all records are in the journal"):
            go([lines], "out.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.jsonl.journal"]
    assert (tmp_path / "out.jsonl.journal").stat().st_size == size
    fake, _ = go([lines], "out.jsonl")
    assert fake.asked == []
    assert (tmp_path / "out.jsonl").exists()


def test_counts_are_left_out_unless_asked_for():
    """What depends on the clock is no part of a file that is to be the same every time."""
    result = Result(
        index=0,
        id="a",
        prompt_sha256="",
        speculation={"verification": "strict", "relaxed": 0, "rounds": 7},
    )
    assert "rounds" not in json.loads(public(result, "run"))["speculation"]
    assert json.loads(public(result, "run", counts=True))["speculation"]["rounds"] == 7
