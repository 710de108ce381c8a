"""The count of accepted tokens beside another program's, here llama_cpp.Llama in place of llama-server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import tiny, tiny_eagle
from measure.contenders import Files, InProcess
from measure.records import TimedAnswer


class Peer(InProcess):
    """Plain decoding that says it accepted 5 of 7, and says the least likely token at place 3 where `wrong`."""

    wrong = False

    def __init__(self, _: str, files: Files, __: object) -> None:
        super().__init__("llama_cpp", files)

    def answer(self, prompt, max_tokens, options) -> TimedAnswer:
        found = super().answer(prompt, max_tokens, options)
        found.speculation = {"accepted": 5, "verified": 7}
        if self.wrong:
            self.llm.reset()
            self.llm.eval([*prompt, *found.tokens[:3]])
            found.tokens[3] = int(self.llm._scores[-1].argmin())
        return found


@pytest.fixture
def words(tiny_ascii: Path, tmp_path: Path) -> list[str]:
    """Arguments for one question to the tiny target and a random head."""
    questions = tmp_path / "q.jsonl"
    asked = {"question_id": 81, "category": "qa", "turns": ["abc abc abc"]}
    questions.write_text(json.dumps(asked))
    draft = tiny_eagle.write(tmp_path / "head.gguf", layers=(0, 1, 1), tokens=tiny.ASCII)
    return [str(tiny_ascii), "--draft", str(draft), "--questions", str(questions), "--tokens", "12"]


def table_rows(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("wrong", [False, True])
def test_a_parting_is_told_with_its_margins(script, monkeypatch, words, wrong, capsys) -> None:
    """Equal texts are summed; a token that no rounding explains is no near-tie, and ours is decoded anew."""
    module = script("accepted")
    monkeypatch.setattr(module, "open_peer", Peer)
    monkeypatch.setattr(Peer, "wrong", wrong)
    module.main(words)
    line, last = (row.strip("| ").split(" | ") for row in table_rows(capsys.readouterr().out))
    assert (line[0], line[2]) == ("81", "5 of 7")
    assert line[3] == ("ours again" if wrong else "equal")
    assert line[4].startswith("+" if wrong else "-")
    assert line[4].count(", ") == (5 if wrong else 0)
    sums = (
        ["0 of 0", "0 of 0", "0 of 1, 0 near-ties"]
        if wrong
        else [*line[1:3], "1 of 1, 0 near-ties"]
    )
    assert last[:4] == ["equal texts", *sums]


@pytest.mark.parametrize(
    ("margins", "near"),
    [([0.1, -0.1], True), ([0.02, 0.05], True), ([0.2, 0.25], False), ([-0.2, -0.25], False), ([0.0], True)],
)  # fmt: skip
def test_a_near_tie_is_within_what_batches_move(script, margins, near) -> None:
    """A sign that differs, or a margin below its own spread."""
    assert script("accepted").near(margins) == near


def test_a_page_has_every_file(script, monkeypatch, words, tmp_path, capsys) -> None:
    """Kept with --out, with the command that made it."""
    module = script("accepted")
    monkeypatch.setattr(module, "open_peer", Peer)
    module.main([*words, "--out", str(tmp_path / "accepted" / "head.json")])
    page = (tmp_path / "accepted" / "README.md").read_text()
    assert capsys.readouterr().out.strip() in page
    assert "## head for " in page


@pytest.mark.parametrize(
    "kind", ["eagle3", "mtp", "mtp-file", "step35", "assistant", "dflash", "dspark"]
)
def test_every_kind_of_head_has_random_files(script, monkeypatch, kind, capsys, tmp_path) -> None:
    """They draft, and answer as llama_cpp.Llama does; step35 has three heads."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path))
    module = script("accepted")
    asked = []

    def peer(name, files, server) -> Peer:
        asked.append(name)
        return Peer(name, files, server)

    monkeypatch.setattr(module, "open_peer", peer)
    monkeypatch.setattr(module, "PROMPTS", 2)
    module.main([f"random:{kind}", "--tokens", "6"])
    last = capsys.readouterr().out.strip().splitlines()[-1].strip("| ").split(" | ")
    assert last[3] == "2 of 2, 0 near-ties"
    assert int(last[1].split()[-1]) > 0
    assert asked == [f"server-{'mtp' if kind in ('mtp-file', 'step35', 'assistant') else kind}:3"]


def test_what_our_rounds_do_not_make_again_is_said(script, monkeypatch, words, capsys) -> None:
    """Neither a near-tie nor our own rows' rounding."""
    module = script("accepted")
    monkeypatch.setattr(module, "open_peer", Peer)
    monkeypatch.setattr(Peer, "wrong", True)
    monkeypatch.setattr(module, "choices", lambda *_: [-1] * 12)
    module.main(words)
    assert table_rows(capsys.readouterr().out)[0].split(" | ")[3] == "NO near-tie"
