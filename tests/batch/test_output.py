"""The output: in the order of the inputs, whole or not at all, and nothing else overwritten."""

import json
import os
import resource
import time

import pytest
from helpers.fake_batch import Fake

from pyspec.batch.output import open_output, output_line
from pyspec.batch.reading import Reading
from pyspec.errors import BatchWriteError, InputError, ResumeMismatch
from pyspec.machine.files import write_whole
from pyspec.text.parts import RecordResult


@pytest.fixture
def lines(tmp_path):
    """in.txt: five lines, one of which fails."""
    (tmp_path / "in.txt").write_text("a\nb\nbad\nd\n\ne\n")
    return "in.txt"


@pytest.fixture
def read(tmp_path):
    return lambda out="out.jsonl": [
        json.loads(line) for line in (tmp_path / out).read_text().splitlines()
    ]


@pytest.mark.parametrize(("stop_after", "answered"), [(1, 1), (3, 2), (5, 4)])
def test_interrupted_run_goes_on_and_a_finished_one_is_not_run_again(
    go, lines, tmp_path, stop_after, answered
):
    go([lines], "whole.jsonl")
    with pytest.raises(KeyboardInterrupt):
        go([lines], "out.jsonl", stop_after=stop_after)
    assert not (tmp_path / "out.jsonl").exists()
    fake, summary = go([lines], "out.jsonl")
    assert (len(fake.asked), summary.kept) == (5 - stop_after, answered)
    fake, summary = go([lines], "out.jsonl")
    assert (fake.asked, summary.kept, summary.failed, summary.left) == ([], 4, 1, 0)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize(("per", "file", "asked", "said"), [
    ("line", "x.txt", "a\nb\nbad\nd\n\ne\n", "A\nB\n\nD\nE\n"),
    ("paragraph", "x.txt", "a\nb\nBAD?\n\ne\n", "A\nB\nBAD?\n\nE\n\n"),
    ("file", "sub/x.txt", "one\ntwo\n", "ONE\nTWO\n"),
])  # fmt: skip
def test_folder_gets_a_file_an_input(go, tmp_path, per, file, asked, said):
    path = tmp_path / "in" / file
    path.parent.mkdir(parents=True)
    path.write_text(asked)
    go(["in"], "out/", per)
    assert (tmp_path / "out" / file).read_text() == said


def test_two_inputs_of_one_name_are_refused(go, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("x\n")
    with pytest.raises(InputError, match="two inputs"):
        go(["a/x.txt", "b/x.txt"], "out/")


@pytest.mark.parametrize("out", ["in.txt", "link.jsonl", "pipe.jsonl", "in/"])
def test_odd_outputs_are_refused(go, lines, tmp_path, out):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("x\n")
    with pytest.raises(InputError):
        go(["in"] if out == "in/" else [lines], out)
    with pytest.raises(InputError, match="stdout"):  # it would be a file named `-`
        open_output("-", (), Reading("line"), overwrite=False)
    assert (tmp_path / "in.txt").read_text() == "a\nb\nbad\nd\n\ne\n"
    assert not (tmp_path / "elsewhere").exists()


def test_disk_full_while_assembling_keeps_the_journal(go, lines, tmp_path, file_limit):
    with pytest.raises(KeyboardInterrupt):
        go([lines], "out.jsonl", stop_after=5)
    size = (tmp_path / "out.jsonl.journal").stat().st_size
    file_limit(100)
    with pytest.raises(BatchWriteError, match="all records are in the journal"):
        go([lines], "out.jsonl")
    file_limit(resource.RLIM_INFINITY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.jsonl.journal"]
    assert (tmp_path / "out.jsonl.journal").stat().st_size == size
    fake, _ = go([lines], "out.jsonl")
    assert fake.asked == []
    assert (tmp_path / "out.jsonl").exists()


def test_counts_are_left_out():
    """What depends on the clock is no part of a file that is to be the same every time."""
    counts = {"verification": "strict", "relaxed": 0, "rounds": 7}
    result = RecordResult(index=0, id="a", prompt_sha256="", speculation=counts)
    assert "rounds" not in json.loads(output_line(result, "run"))["speculation"]


# -- nothing of others is overwritten ------------------------------------------------------------------


@pytest.mark.parametrize("out", ["out.jsonl", "out/"])
def test_file_that_appears_meanwhile_is_kept(go, lines, tmp_path, out):
    path = tmp_path / ("out.jsonl" if out == "out.jsonl" else "out/in.txt")

    class Late(Fake):
        def run_indexed(self, records):
            yield from super().run_indexed(records)
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")

    with pytest.raises(BatchWriteError, match="appeared or changed"):
        go([lines], out, fake=Late())
    assert path.read_text() == "mine"
    with pytest.raises(ResumeMismatch):
        go([lines], out)
    assert path.read_text() == "mine"
    path.unlink()
    fake, _ = go([lines], out)
    assert (fake.asked, path.exists()) == ([], True)


def test_file_that_appears_at_the_last_moment_is_kept(tmp_path, monkeypatch):
    """Between looking and taking the name: a link fails where the name is taken."""
    path = tmp_path / "out"
    link = os.link

    def late(source, target):
        path.write_text("mine")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileExistsError):
        write_whole(path, [b"ours"], replace=False)
    assert (path.read_text(), len(list(tmp_path.iterdir()))) == ("mine", 1)


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out/in.txt"])
def test_a_file_of_others_is_replaced_if_asked_for_alone(go, lines, tmp_path, name):
    path, out, fake = tmp_path / name, name.removesuffix("in.txt"), Fake()
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(ResumeMismatch):
        go([lines], out, fake=fake)
    assert (fake.asked, path.read_text()) == ([], "mine")
    go([lines], out, overwrite=True)
    assert len(path.read_text().splitlines()) >= 5


@pytest.mark.parametrize("out", ["out.jsonl", "out/"])
def test_overwrite_replaces_whatever_is_there(go, lines, tmp_path, out):
    go([lines], out, fake=Fake(target="other"))
    with pytest.raises(ResumeMismatch, match="other target"):
        go([lines], out)
    (tmp_path / "out.jsonl.journal").write_text('{"pyspec_batch":1,"run":{}}\n')
    fake, _ = go([lines], out, overwrite=True)
    assert len(fake.asked) == 5
    (tmp_path / "out.jsonl.journal").write_text("notes")
    if out == "out.jsonl":
        (tmp_path / "out.jsonl").write_text("x")
        with pytest.raises(BatchWriteError, match="not a batch journal"):
            go([lines], out, overwrite=True)


# -- failed records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["out.jsonl", "out/"])
def test_retry_failed_asks_only_those(go, lines, tmp_path, out, read):
    go([lines], out)
    fake, summary = go([lines], out, retry_failed=True)
    assert (fake.asked, summary.failed) == ([2], 1)
    fake, summary = go([lines], out, fake=Fake("none"), retry_failed=True)
    assert (fake.asked, summary.kept, summary.failed) == ([2], 4, 0)
    if out == "out/":
        assert (tmp_path / "out" / "in.txt").read_text() == "A\nB\nBAD\nD\nE\n"
        return
    assert [line["text"] for line in read()] == ["A", "B", "BAD", "D", "E"]
    assert go([lines], out, retry_failed=True)[0].asked == []


# -- OpenAI's format -----------------------------------------------------------------------------------


def test_openai_batch_lines_come_back_as_such(go, tmp_path, read):
    from openai.types.chat import ChatCompletion

    ask = {"method": "POST", "url": "/v1/chat/completions"}
    messages = [{"role": "user", "content": "hi"}]
    lines = [
        {**ask, "custom_id": "a", "body": {"model": "m", "messages": messages}},
        {**ask, "custom_id": "b", "body": {"messages": messages, "temperature": -1}},
        {**ask, "custom_id": "c", "url": "/v1/embeddings", "body": {"input": "x"}},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))

    before = int(time.time())
    go(["in.jsonl"], "out.NDJSON")
    good, bad, other = read("out.NDJSON")
    answer = ChatCompletion.model_validate(good["response"]["body"])
    assert (good["custom_id"], good["response"]["status_code"], good["error"]) == ("a", 200, None)
    assert (answer.choices[0].message.content, answer.usage.total_tokens) == ("HI", 0)
    assert before <= answer.created <= time.time()
    assert (bad["custom_id"], bad["response"]) == ("b", None)
    assert "temperature" in bad["error"]["message"]
    assert "url" in other["error"]["message"]
    lines.insert(0, {**ask, "custom_id": "d", "body": {"messages": messages}})
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert 1 not in go(["in.jsonl"], "out.NDJSON")[0].asked
    assert read("out.NDJSON")[1] == good  # with the time of the answer


SHOWN = {"prompts": True}


@pytest.fixture
def two(tmp_path):
    """A prompt, and a line that cannot be read."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "abc"}\n{bad\n')
    return ["in.jsonl"]


def test_prompts_stand_in_the_lines_of_a_finished_file_too(go, two, tmp_path):
    """Where they could be read; such a file is known again."""
    go(two, "out.jsonl")
    for _ in range(2):
        assert go(two, "out.jsonl", lines=SHOWN)[0].asked == []
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [line.get("prompt") for line in found] == ["abc", None]
        assert found[0]["text"] == "ABC"
