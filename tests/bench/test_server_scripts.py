"""Scripts that load a server: each runs on tiny models, and says what it is for."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from pathlib import Path

import pytest

from pyspec.profiling.questions import Question


@pytest.mark.usefixtures("in_forks")
def test_the_server_is_loaded(script, tiny_ascii: Path, tmp_path: Path, capsys) -> None:
    """Two clients, twelve requests: a row with a speed, and no errors."""
    questions = tmp_path / "questions.jsonl"
    line = '{"question_id": %d, "category": "qa", "turns": ["%s", "more"]}\n'
    questions.write_text(line % (1, "abc") + line % (2, "hello"))
    numbers = [
        "--clients",
        "2",
        "--requests",
        "12",
        "--tokens",
        "3",
        "--ctx",
        "512",
        "--threads",
        "1",
    ]
    out = tmp_path / "results" / "tiny.json"
    script("serve").main([str(tiny_ascii), str(questions), *numbers, f"--out={out}"])
    cells = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert cells[0] == "| pyspec"
    assert (float(cells[1]) > 0, cells[6]) == (True, "0")
    assert 0.0 <= float(cells[9]) <= float(cells[10].rstrip(" |"))
    page = (out.parent / "README.md").read_text()
    assert "| pyspec | " in page
    assert "| gap p95 | gap max |" in page
    assert str(tmp_path) not in page


def test_few_requests_are_of_all_kinds(script) -> None:
    """A file has its questions by kind: the first twelve would all be of two."""
    kinds = ["qa", "qa", "qa", "rag", "rag", "math"]
    questions = [Question(i, kind, [f"{kind}{i}"]) for i, kind in enumerate(kinds)]
    texts = script("serve").kinds_in_turn(questions)
    assert texts == ["qa0", "rag3", "math5", "qa1", "rag4", "qa2"]


def test_the_other_server_drafts_as_many_tokens_as_its_name_says(
    script, tiny_draft, tiny_eagle3
) -> None:
    """With the model or the head that was given; by its bare name with none."""
    serve = script("serve")
    numbers = {"clients": 1, "ctx": 512, "threads": 1, "server": "llama-server", "model": "m.gguf"}
    for draft, kind in (tiny_eagle3, "draft-eagle3"), (tiny_draft, "draft-simple"):
        options = Namespace(**numbers, draft=draft)
        words = " ".join(serve.command(options, "llama-server:3"))
        assert f"--spec-type {kind} -md {draft} -td 1 --spec-draft-n-max 3" in words
        assert "--spec" not in " ".join(serve.command(options, "llama-server"))
        assert serve.command(options, "pyspec:none")[-2:] == ["--draft", "none"]


def test_a_p95_is_no_longer_than_the_longest(script) -> None:
    """Eleven short waits and a long one, beyond which the default of `quantiles` goes."""
    p95 = script("serve").p95
    assert 0.001 < p95([0.001] * 11 + [0.006]) < 0.006
    assert p95([2.0, 2.0]) == 2.0


@pytest.mark.usefixtures("in_forks")
def test_conversations_come_back(script, tiny_ascii: Path, tmp_path: Path, capsys) -> None:
    """Two over one slot: how long their second turns waited."""
    questions = tmp_path / "questions.jsonl"
    line = '{"question_id": %d, "category": "qa", "turns": ["%s"]}\n'
    questions.write_text(line % (1, "abc" * 9) + line % (2, "hello" * 9))
    numbers = [
        "--conversations",
        "2",
        "--slots",
        "1",
        "--tokens",
        "3",
        "--least",
        "9",
        "--ctx",
        "512",
        "--threads",
        "1",
    ]
    words = [str(tiny_ascii), str(questions), *numbers, "--contenders", "pyspec", "--out"]
    script("returning").main([*words, str(tmp_path / "out")])
    cells = capsys.readouterr().out.splitlines()[2].strip("| ").split(" | ")
    assert cells[0] == "pyspec"
    assert all(0.0 <= float(cell) < 60.0 for cell in cells[1:])
    assert "| pyspec | " in (tmp_path / "out" / "README.md").read_text()
    assert script("returning").command(
        Namespace(slots=2, ctx=8, threads=1, server="s", model="m"), "llama-server:0"
    )[-2:] == ["--cache-ram", "0"]


@pytest.mark.usefixtures("in_forks")
def test_an_agent_is_answered_with_and_without_memory(
    script, tiny_ascii: Path, tmp_path, capsys
) -> None:
    """A row a contender: tokens of the turns behind the first one, and the page."""
    numbers = [
        "--turns",
        "2",
        "--tokens",
        "8",
        "--ctx",
        "4096",
        "--threads",
        "1",
        "--draft",
        "lookup",
    ]
    out = tmp_path / "results" / "tiny.json"
    script("agent").main([str(tiny_ascii), *numbers, f"--out={out}"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| plain", "| text", "| memory"]
    assert all(float(row[2]) > 0.0 for row in rows)
    assert "| memory | " in (out.parent / "README.md").read_text()


@pytest.mark.usefixtures("in_forks")
def test_hostile_tells_the_longest_wait_beside_each_attack(script, tiny_ascii, capsys) -> None:
    """A row a kind of attack, and how its requests ended."""
    few = [
        "--seconds",
        "0.2",
        "--lead",
        "0.2",
        "--attackers",
        "1",
        "--only",
        "ends nowhere",
        "--ctx",
        "512",
    ]
    script("hostile").main([str(tiny_ascii), "--threads", "1", *few])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows[2:4]] == [
        "| nothing",
        "| grammar that ends nowhere",
    ]
    assert rows[-1].startswith("waits over 1000 ms: ")


def test_a_body_in_chunks_is_whole_or_wrong(script) -> None:
    """Servers send streams so; one that was cut off between chunks would look like one that ended."""
    unchunked = script("mixed").unchunked
    assert unchunked(b"3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n") == b"abc0123456789"
    for cut in (b"3\r\nabc\r\n", b"3\r\nab", b"3\r\nabc\r\n0\r\n"):
        with pytest.raises(ValueError, match=r"chunk|invalid literal"):
            unchunked(cut)


@pytest.mark.usefixtures("in_forks")
def test_mixed_requests_all_end_as_they_should(script, tiny_ascii, tmp_path, capsys) -> None:
    """Of every kind and by every interface, and many streams at once; a page has the same figures."""
    few = [
        "--requests",
        "100",
        "--seconds",
        "600",
        "--clients",
        "16",
        "--streams",
        "20",
        "--tokens",
        "6",
    ]
    out = tmp_path / "mixed" / "tiny.json"
    few += ["--memory", "off", f"--out={out}"]
    script("mixed").main([str(tiny_ascii), "--threads", "1", "--parallel", "8", *few])
    *lines, head, _, row = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["parted: 0", "wrong: 0"]
    assert {row.split(" | ")[0] for row in lines[2:7]} == {
        f"| {kind}" for kind in script("mixed").KINDS
    }
    tenths = [float(each) for each in lines[-4].rpartition(": ")[2].split(", ")]
    assert len(tenths) == 10
    grown = float(lines[-3].partition(": ")[2].split()[0])
    assert abs(tenths[-1] - tenths[0] - grown) <= 1.0  # each is rounded
    page = (out.parent / "README.md").read_text()
    assert f"{head}\n" in page
    assert row in page
    cells = row.strip("| ").split(" | ")
    assert [cells[0], *cells[7:9], *map(float, cells[9:19])] == ["memory off", "0", "0", *tenths]
    assert "one run. Target" in page


RESPONSE = [
    {"type": "response.created"},
    {"type": "response.output_text.delta", "delta": "a b"},
    {"type": "response.completed", "response": {"output": [{"content": [{"text": "a b"}]}]}},
]


def sse(events, *, named=True):
    lines = [f"event: {e['type']}\n" if named else "" for e in events]
    return "".join(f"{n}data: {json.dumps(e)}\n\n" for n, e in zip(lines, events)).encode()


@pytest.mark.parametrize(
    ("door", "stream", "whole"),
    [
        ("response", sse(RESPONSE), {"output": [{"content": [{"text": "a b"}]}]}),
        ("message", sse([
            {"type": "content_block_delta", "delta": {"text": "a"}},
            {"type": "content_block_delta", "delta": {"partial_json": '{"n":1}'}},
            {"type": "message_stop"},
        ]), {"content": [{"type": "text", "text": "a"}, {"type": "tool_use", "input": {"n": 1}}]}),
        ("chat", sse([
            {"choices": [{"delta": {"content": "a"}}]},
            {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
            {"choices": []},
        ], named=False) + b"data: [DONE]\n\n",
         {"choices": [{"message": {"content": "a", "tool_calls": [{"function": {"arguments": "{}"}}]}}]}),
        ("text", sse([{"choices": [{"text": "a"}]}], named=False) + b"data: [DONE]\n\n", {"choices": [{"text": "a"}]}),
    ],
)  # fmt: skip
def test_a_stream_is_right_where_it_came_to_its_end(script, door, stream, whole) -> None:
    """Not with fewer events, nor with another text than the same request had."""
    mixed = script("mixed")
    run = mixed.MixedRun(0, 0, Namespace(seed=1, tokens=9))
    assert run._judge("streamed", door, 200, stream, {}) == ""
    events = stream.split(b"\n\n")
    for n in range(1, len(events)):
        cut = b"\n\n".join(events[: n - 1])
        assert run._judge("streamed", door, 200, cut, {}) != ""
    for text in (mixed.said(door, whole), mixed.said_in(door, stream)):
        run._compare("x", text)
    assert not run.parted
    run._compare("x", mixed.said_in(door, stream) + "b")
    assert len(run.parted) == 1


def test_a_response_that_lost_a_piece_is_wrong(script) -> None:
    """Its last event says what there should have been."""
    run = script("mixed").MixedRun(0, 0, Namespace(seed=1, tokens=9))
    assert run._judge("slow", "response", 200, sse([RESPONSE[0], RESPONSE[2]]), {}) != ""


def test_what_is_asked_at_temperature_0_comes_again(script) -> None:
    """Tools and schemas among it, and never more tokens than were allowed."""
    mixed, draw = script("mixed"), random.Random(1)  # noqa: S311 - no secret
    for door in mixed.PATHS:
        asked = [mixed.good(door, draw, 6) for _ in range(400)]
        alike = [json.dumps(each) for each in asked if each.get("temperature") == 0]
        assert 2 < len(set(alike)) <= 24 < len(alike)
        for shape in (mixed.TOOLS[door], mixed.FORMS[door]):
            assert any(shape.keys() <= each.keys() for each in asked)


@pytest.mark.filterwarnings("ignore")  # Ray's, of itself
def test_replicas_are_measured_beside_one(script, tiny_ascii, questions, tmp_path, capsys) -> None:
    """A row each, the second beside the first, and every request answered; a page has the same."""
    pytest.importorskip("ray.serve", reason="[ray-serve] is not installed", exc_type=ImportError)
    few = ["--requests", "6", "--clients", "2", "--tokens", "4", "--ctx", "256", "--draft", "none"]
    out = tmp_path / "replicas" / "tiny.json"
    few += ["--contenders", "1x1,2x1", f"--out={out}"]
    script("replicas").main([str(tiny_ascii), str(questions), *few])
    lines = capsys.readouterr().out.splitlines()[-4:]
    rows = [row.strip("| ").split(" | ") for row in lines[2:]]
    assert [row[0] for row in rows] == ["1x1", "2x1"]
    assert rows[0][2:4] == ["1.00", "1.00"]
    assert {row[-1] for row in rows} == {"0"}
    page = (out.parent / "README.md").read_text()
    assert "\n".join(lines) in page
    assert "2 clients, 6 requests of at most 4 tokens" in page


def test_replicas_stand_beside_one_that_has_all_their_threads(script) -> None:
    """And beside the first contender; where no such one was measured, that is left out."""
    rates = {"1x1": 2.0, "1x2": 3.0, "2x1": 3.9, "2x2": 4.0}
    contenders = [
        {"name": one, "rate": rate, "tokens": 1.0, "whole": 1.0, "errors": 0.0}
        for one, rate in rates.items()
    ]
    kind = script("replicas").ReplicaResults
    given = {
        "day": "",
        "machine": "",
        "command": "",
        "title": "",
        "threads": 2,
        "max_tokens": 1,
        "repeat": 1,
    }
    found = kind(**given, target=None, clients=1, requests=1, contenders=contenders)
    rows = [row.strip("| ").split(" | ")[2:4] for row in found.table().splitlines()[2:]]
    assert rows == [["1.00", "1.00"], ["1.50", "1.00"], ["1.95", "1.30"], ["2.00", "-"]]


def test_errors_of_all_runs_are_told(script) -> None:
    """A median of them would hide a run that failed."""
    runs = [{"rate": rate, "errors": n} for rate, n in ((1.0, 0.0), (2.0, 5.0), (9.0, 0.0))]
    assert script("common").medians(runs) == {"rate": 2.0, "errors": 5.0}


def test_embeddings_are_compared_with_a_peers(
    script, tiny_ascii: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    """All texts once in each run; a peer whose vectors point elsewhere shows it."""
    embeddings, asked = script("embeddings"), []

    class Server:
        def __init__(self, command: list[str]) -> None:
            self.peer = "serve" not in command

        def lines(self, _path: str, body: dict[str, list[str]]):
            asked.append(len(body["input"]))
            rows = [
                {"index": i, "embedding": [1.0, float(self.peer and i == 0)]}
                for i in range(len(body["input"]))
            ]
            yield json.dumps({"data": rows[::-1], "usage": {"prompt_tokens": 5}}).encode()

        def close(self) -> None:
            pass

    monkeypatch.setattr(embeddings, "ServerProcess", Server)
    few = ["--texts", "5", "--each", "2", "--repeat", "1", "--out", str(tmp_path / "tiny.json")]
    embeddings.main([str(tiny_ascii), "--server", "none", *few])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("| pyspec", "15", "1.00000 |"),
        ("| llama-server", "15", "0.70711 |"),
    ]
    assert asked == [2, 2, 2, 1] * 2
    assert "5 texts in requests of 2" in (tmp_path / "README.md").read_text()
