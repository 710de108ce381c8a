"""Batches that are mended or extended: only what is new, changed or failed is answered."""

import json

import pytest
from helpers.fake_batch import Fake

from pyspec.batch.output import matched
from pyspec.errors import ResumeMismatch

OUTS = ["out.jsonl", "out.csv", "out/"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(20):
        (tmp_path / "in" / f"{i:02}.txt").write_text(f"a{i}\nb{i}\n")
    (tmp_path / "in" / "07.txt").write_bytes(b"caf\xe9\nb7\n")
    return tmp_path / "in"


@pytest.fixture
def again(go):
    def again_(out, **options):
        asked = []

        class Noting(Fake):
            def run_indexed(self, records):
                asked.extend(record.prompt for _, record in records)
                yield from super().run_indexed(records)

        _, summary = go(["in"], out, fake=Noting(), **options)
        return sorted(asked, key=str), summary

    return again_


def read(path):
    found = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    return {each.name: each.read_text().replace(f"{path}", "") for each in found}


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("retry", [False, True])
def test_a_file_is_converted(again, files, out, retry):
    again(out)
    (files / "07.txt").write_text("café\nb7\n")
    asked, summary = again(out, retry_failed=retry)
    assert (asked, summary.kept, summary.failed) == (["café"], 39, 0)


@pytest.mark.parametrize("out", OUTS)
def test_bad_bytes_are_replaced(again, files, out):
    again(out)
    asked, summary = again(out, errors="replace")
    assert (asked, summary.failed) == (["caf\ufffd"], 0)


CHANGES = {
    "a file more": (lambda folder: (folder / "20.txt").write_text("c\n"), ["c"]),
    "a line more": (lambda folder: (folder / "03.txt").write_text("a3\nb3\nc\n"), ["c"]),
    "a line between": (lambda folder: (folder / "03.txt").write_text("a3\nc\nb3\n"), ["c"]),
    "a line above": (lambda folder: (folder / "00.txt").write_text("c\na0\nb0\n"), ["c"]),
    "a changed line": (lambda folder: (folder / "03.txt").write_text("a3\nc\n"), ["c"]),
    "another name": (lambda folder: (folder / "03.txt").rename(folder / "z.txt"), []),
    "a line that is bad": (lambda folder: (folder / "03.txt").write_text("a3\nbad\n"), ["bad"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("out", OUTS)
def test_only_what_changed_is_asked(again, go, files, tmp_path, out, change):
    make, expected = CHANGES[change]
    again(out)
    make(files)
    assert again(out)[0] == expected
    go(["in"], f"fresh-{out}")
    fresh = read(tmp_path / f"fresh-{out}")
    fresh = {name.replace("fresh-", ""): text for name, text in fresh.items()}
    assert fresh.items() <= read(tmp_path / out).items()
    assert again(out)[0] == []


@pytest.mark.parametrize("out", OUTS)
def test_an_interrupted_run_is_mended(again, files, out):
    with pytest.raises(KeyboardInterrupt):
        again(out, stop_after=15)
    (files / "20.txt").write_text("c\n")
    asked, summary = again(out)
    assert (len(asked), summary.kept) == (26, 15)


def test_a_mending_that_is_interrupted_goes_on(again, files, tmp_path):
    again("out.jsonl")
    before = (tmp_path / "out.jsonl").read_bytes()
    for i in range(20, 25):
        (files / f"{i}.txt").write_text("c\n")
    with pytest.raises(KeyboardInterrupt):
        again("out.jsonl", stop_after=2)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert again("out.jsonl")[0] == ["c"] * 3


@pytest.mark.parametrize("out", OUTS)
def test_answers_are_not_lost_with_their_inputs(again, files, tmp_path, out):
    again(out)
    before = read(tmp_path / out)
    (files / "07.txt").write_text("b7\n")
    assert again(out)[0] == []
    (files / "03.txt").unlink()
    before = read(tmp_path / out)
    with pytest.raises(ResumeMismatch, match="answers to 2 records"):
        again(out)
    assert read(tmp_path / out) == before
    asked, summary = again(out, overwrite=True)
    assert (asked, summary.records) == ([], 37)


def test_lines_in_openais_format_are_kept(go, tmp_path):
    url = "/v1/completions"
    asks = [{"custom_id": n, "url": url, "body": {"prompt": n}} for n in ("a", "bad", "c")]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asks)))
    go(["in.jsonl"], "out.jsonl")
    first = (tmp_path / "out.jsonl").read_text().splitlines()
    asks.insert(1, {"custom_id": "d", "url": url, "body": {"prompt": "d"}})
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, asks)))
    fake, _ = go(["in.jsonl"], "out.jsonl")
    assert fake.asked == [1]
    found = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [found[0], *found[2:]] == first


def test_one_answer_is_given_to_one_record():
    known = [("a", "x"), ("b", "x"), ("c", "y")]
    wanted = [("new", "x"), ("b", "x"), ("d", "x"), ("e", "z")]
    assert matched(wanted, known) == [("a", "x"), ("b", "x"), None, None]
