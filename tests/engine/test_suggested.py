"""A draft that is known and not here is named once at every door, and ids that a draft lacks end no draft."""

import logging

import msgspec
import pytest
from helpers import tiny
from helpers.answers import ask

from pyspec.batch import Batch, Record
from pyspec.gguf.header import facts_of
from pyspec.hub.sources import Family, FamilyDraft, load_manifest

SAID = "`pyspec models pull owner/small-GGUF:Q8_0` (0.00 GB) fetches one"
PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2, tiny.A]


@pytest.fixture
def target(tmp_path, monkeypatch, own_cache):
    """A model of a family with a draft, on a machine that has no other."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tiny.write(tmp_path / "target.gguf", n_layer=4)
    facts = facts_of(path)
    assert facts is not None
    draft = FamilyDraft("owner/small-GGUF:Q8_0", 1000, "MIT")
    family = Family("Tiny", ("llama",), (facts.n_vocab,), (draft,))
    manifest = msgspec.structs.replace(load_manifest(), family=(family,))
    monkeypatch.setattr("pyspec.hub.drafts.load_manifest", lambda: manifest)
    monkeypatch.setattr("pyspec.hub.drafts.LARGE", 0)
    return path


def test_the_class_says_it_once(open_llama, target, caplog):
    """Behind the first answer, as whoever only loads a model has not seen how fast it is; `generate` and `chat` answer by it."""
    caplog.set_level(logging.WARNING, "pyspec")
    for before in (0, 1):
        llm = open_llama(target, draft="auto")
        assert caplog.text.count(SAID) == before
        assert ask(llm, PROMPT, 4).ids
        assert ask(llm, PROMPT, 4).ids
    assert caplog.text.count(SAID) == 1


@pytest.mark.parametrize(("draft", "large"), [("lookup", 0), ("none", 0), ("auto", 10**9)])
def test_not_where_it_was_chosen_nor_for_a_small_model(
    open_llama, target, caplog, monkeypatch, draft, large
):
    """The user knows of drafts then; and a small model gains little by one."""
    monkeypatch.setattr("pyspec.hub.drafts.LARGE", large)
    caplog.set_level(logging.WARNING, "pyspec")
    assert ask(open_llama(target, draft=draft), PROMPT, 4).ids
    assert SAID not in caplog.text


def test_a_batch_says_it_once(target, caplog):
    """`batch` and `serve` answer by it."""
    caplog.set_level(logging.WARNING, "pyspec")
    for _ in range(2):
        with Batch(str(target), draft="auto", n_ctx=256, n_threads=1, parallel=2) as batch:
            (result,) = batch.run([Record(id="1", prompt="abc", max_tokens=4)])
            assert result.error is None
    assert caplog.text.count(SAID) == 1


def test_ids_that_a_draft_lacks_end_no_draft(open_llama, tmp_path):
    more = [*tiny.TOKENS, *(f"[PAD{i}]" for i in range(9))]
    target = tiny.write(tmp_path / "more.gguf", n_layer=4, tokens=more)
    draft = tiny.write(tmp_path / "fewer.gguf", n_layer=1)
    prompt = [*PROMPT, tiny.N_VOCAB + 4, tiny.A, tiny.N_VOCAB + 8, tiny.A + 1]
    llm = open_llama(target, draft=draft, length="fixed:3")
    assert ask(llm, prompt, 30).ids == ask(open_llama(target), prompt, 30).ids
    assert llm.last_speculation["drafted"] > 20
    assert not llm.session.loop.failed
