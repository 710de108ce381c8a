"""Batches that are mended or extended: only what is new, changed or failed is answered."""

import pytest

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
        fake, summary = go(["in"], out, **options)
        return sorted(fake.prompts, key=str), summary

    return again_


def read(path):
    found = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    return {each.name: each.read_text().replace(f"{path}", "") for each in found}


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("how", [{}, {"retry_failed": True}, {"errors": "replace"}])
def test_a_file_is_converted_or_its_bad_bytes_replaced(again, files, out, how):
    again(out)
    if "errors" not in how:
        (files / "07.txt").write_text("café\nb7\n")
    asked, summary = again(out, **how)
    assert asked == ["caf\ufffd" if "errors" in how else "café"]
    assert (summary.kept, summary.failed) == (39, 0)


CHANGES = {
    "a file more": ("20.txt", "c\n", ["c"]),
    "a line more": ("03.txt", "a3\nb3\nc\n", ["c"]),
    "a line between": ("03.txt", "a3\nc\nb3\n", ["c"]),
    "a line above": ("00.txt", "c\na0\nb0\n", ["c"]),
    "a changed line": ("03.txt", "a3\nc\n", ["c"]),
    "another name": ("03.txt", None, []),
    "a line that is bad": ("03.txt", "a3\nbad\n", ["bad"]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("out", OUTS)
def test_only_what_changed_is_asked(again, go, files, tmp_path, out, change):
    name, text, expected = CHANGES[change]
    again(out)
    (files / name).rename(files / "z.txt") if text is None else (files / name).write_text(text)
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


def test_one_answer_is_given_to_one_record():
    known = [("a", "x"), ("b", "x"), ("c", "y")]
    wanted = [("new", "x"), ("b", "x"), ("d", "x"), ("e", "z")]
    assert matched(wanted, known) == [("a", "x"), ("b", "x"), None, None]
