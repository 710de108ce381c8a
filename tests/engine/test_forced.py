"""Drafts beside a grammar: what it forces is drafted, and what it forbids is not verified."""

from contextlib import closing

import pytest
from helpers import tiny

from pyspec import SpeculativeLlama
from pyspec.engine.handle import Engine
from pyspec.engine.round import allowed

WORDS = ["na", "me", "name", "ci", "ty", "city", '":', '▁"', '{"', '",']
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "b"]}, "city": {"enum": ["c", "d"]}, "people": {"enum": [1, 2]}},
    "required": ["name", "city", "people"],
    "additionalProperties": False,
}  # fmt: skip
ASKED = {"max_tokens": 120, "response_format": {"type": "json_object", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A random model whose tokens are characters and some words."""
    return tiny.write(tmp_path_factory.mktemp("words") / "words.gguf", tokens=[*tiny.ASCII, *WORDS])


def opened(path, **options):
    return closing(
        SpeculativeLlama(str(path), n_ctx=512, n_threads=1, trust=True, verbose=False, **options)
    )


def answer(llm, **options):
    made = llm.create_chat_completion([{"role": "user", "content": "ab"}], **ASKED, **options)
    return made["choices"][0]["message"]["content"], llm.last_speculation


@pytest.mark.parametrize("draft", ["none", "lookup", "model"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_forced_tokens_change_no_text(path, draft, temperature, monkeypatch):
    how = {"temperature": temperature, "seed": 3}
    with opened(path, draft=str(path) if draft == "model" else draft) as llm:
        text, block = answer(llm, **how)
        monkeypatch.setattr("pyspec.engine.round.force", lambda *_: 0)
        alone, plain = answer(llm, **how)
    assert text == alone
    assert block["forced"] > 6
    assert plain["forced"] == 0
    assert block["rounds"] < plain["rounds"] or draft == "model"


def test_a_text_that_has_to_come_is_tokenized_as_by_the_target(path):
    """Not spelled out, whatever a random model would like best."""
    with opened(path, draft="none") as llm:
        said = []
        answer(llm, logits_processor=[lambda ids, scores: said.append(int(ids[-1])) or scores])
        pieces = {llm.detokenize([token]) for token in said}
    assert {b"name", b"city"} <= pieces


def test_what_a_grammar_forbids_is_never_verified(path, monkeypatch):
    cuts, verified = [], []
    verify = Engine.verify

    def noted(engine, run, n):
        cuts.append((n, allowed(engine, run, n)))
        return cuts[-1][1]

    def counted(engine, work):
        verified.append(work[0][2])
        verify(engine, work)

    monkeypatch.setattr("pyspec.engine.round.allowed", noted)
    monkeypatch.setattr(Engine, "verify", counted)
    with opened(path, draft=str(path), length="fixed:4") as llm:
        answer(llm)
    assert any(n < wanted for wanted, n in cuts)
    assert [n for n in verified if n > 0] == [n for _, n in cuts if n]
