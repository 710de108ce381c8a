"""DFlash and DSpark drafts in the engine: the block they draft is what a forward pass in numpy drafts, whatever came before."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from helpers import tiny, tiny_dflash, tiny_eagle
from helpers.answers import ask, ask_at_once, counters, drafted

from pyspec.batch.contexts import Layout, Models
from pyspec.engine.handle import Role
from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel

PROMPT = b"abcabdabe"
FORMS = {
    "own": {},
    "borrowed": {"embeddings": False, "head": False},
    "tied": {"head": False},
    "listed": {"d2t": range(3, 31, 2)},
    "one-layer": {"layers": [2]},
    "five-layers": {"layers": [0, 1, 2, 3, 3]},
    "causal": {"causal": True},
    "dspark": {"markov": True},
    "dspark-sure": {"markov": True, "confidence": True},
    "dspark-bonus": {"markov": True, "confidence": True, "anchored": False},
    "dspark-listed": {"markov": True, "d2t": range(3, 31, 2)},
}


@pytest.fixture(scope="module")
def target(tiny_folder):
    return tiny.write(tiny_folder / "dflash-target.gguf", n_layer=tiny_eagle.N_LAYER)


@pytest.fixture
def make(tmp_path):
    names = count()
    return lambda **form: tiny_dflash.write(tmp_path / f"dflash{next(names)}.gguf", **form)


def check(llm, draft, target, n=5):
    """The engine's block after the text it holds is numpy's."""
    text = llm.session.tokens
    found, chances = drafted(llm, n)
    wanted, likely = tiny_dflash.Draft(draft, target).draft(text, n)
    assert found == wanted
    assert np.allclose(chances, likely, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_numpys(open_llama, make, target, form):
    """In every form of the file, after a prompt and after rounds in which drafts were accepted or refused."""
    draft = make(**FORMS[form])
    llm = open_llama(target, draft=draft)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    for n in (1, 14):
        ask(llm, prompt, n)
        for length in (1, 5):
            check(llm, draft, target, length)


@pytest.mark.parametrize("form", ["own", "dspark-sure"])
def test_a_block_is_one_decode(open_llama, make, target, form):
    """Beside one that reads the text, however many tokens; no more come than the file was made for."""
    llm = open_llama(target, draft=make(**FORMS[form]))
    ask(llm, llm.tokenize(PROMPT, add_bos=False), 20)
    engine = llm.assembly.engine
    drafted(llm, 1)
    before = counters(engine).decodes[Role.DRAFT]
    most = tiny_dflash.BLOCK - (0 if "dspark" in form else 1)
    assert len(drafted(llm, 20)[0]) == most
    assert counters(engine).decodes[Role.DRAFT] == before + 1


@pytest.mark.parametrize("layout", [Layout(1024), Layout(1024, 256)])
@pytest.mark.parametrize("form", ["own", "dspark-sure"])
def test_four_sequences(open_llama, make, target, form, layout):
    """Each has the text that it has alone, and drafts as often right, in a pool of cells or a stream each."""
    draft = make(**FORMS[form])
    prompts = [[5, 6, 7, 5], [9, 8, 7, 9], [20, 4], [11, 12, 13, 14, 15, 16]]
    alone = open_llama(target, draft=draft, length="fixed:3")
    wanted = [
        (ask(alone, p, 20 + i).ids, alone.last_speculation["accepted"])
        for i, p in enumerate(prompts)
    ]
    models = Models(str(target), str(draft), "none", n_threads=1, n_threads_batch=1, trust=True)
    runs = ask_at_once(models, prompts, range(20, 24), layout=layout)
    assert [(r.tokens[len(p) :], r.tally.accepted) for r, p in zip(runs, prompts)] == wanted


def test_text_is_the_targets(open_llama, make, target):
    """Over texts that begin alike, go back, or have nothing in common."""
    llm, plain = open_llama(target, draft=make()), open_llama(target)
    for text in (PROMPT, b"abcabdabezz", b"abcab", b"xyz", PROMPT):
        prompt = llm.tokenize(text, add_bos=False)
        assert ask(llm, prompt, 40).ids == ask(plain, prompt, 40).ids


def test_the_context_is_filled(open_llama, make, target):
    """Blocks shrink with the room that is left."""
    llm, plain = open_llama(target, draft=make(), n_ctx=256), open_llama(target, n_ctx=256)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    assert ask(llm, prompt, None).ids == ask(plain, prompt, None).ids
    assert len(llm.session.tokens) >= 256


def test_some_drafts_are_accepted(open_llama, make, target):
    """A draft whose first layer's states say all, with the target's own head, is right now and then."""
    llm = open_llama(target, draft=make(embeddings=False, head=False))
    accepted = 0
    for text in (PROMPT, b"xyz", b"hello", b"good.day"):
        ask(llm, llm.tokenize(text, add_bos=False), 60)
        accepted += llm.last_speculation["accepted"]
    assert accepted > 0


def test_how_sure_it_is_stops_it(open_llama, make, target):
    """A floor on what the confidence head says ends the block there."""
    draft = make(markov=True, confidence=True)
    llm = open_llama(target, draft=draft)
    ask(llm, llm.tokenize(PROMPT, add_bos=False), 12)
    tokens, chances = tiny_dflash.Draft(draft, target).draft(llm.session.tokens, 5)
    engine = llm.assembly.engine
    bins = len(engine._stop.table)
    table = [(i + 0.5) / bins for i in range(bins)]
    survival = [1.0]
    for p in chances:
        at = min(bins - 1, max(0, int((np.log(p / (1 - p)) + 8) * bins / 16)))
        survival.append(survival[-1] * table[at])
    floor = (survival[2] + survival[3]) / 2
    engine.put_draft(0, ())
    engine.set_stop([floor], table)
    engine.draft([0], [5])
    view = engine.drafted(0)
    assert list(view.token[0 : view.n]) == tokens[: view.n]
    assert view.n == 3


WRONG = {
    "another width": ({"width": 64}, DraftMismatch),
    "layers beyond the target's": ({"layers": [1, 9]}, DraftMismatch),
    "no layers": ({"layers": [-1]}, DraftMismatch),
    "no mask": ({"mask": None}, ModelInvalid),
    "no room": ({"block": 1}, ModelInvalid),
    "a selector": ({"selector": True}, UnsupportedModel),
    "ids beyond": ({"d2t": [3, 99]}, DraftMismatch),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused(open_llama, make, target, what):
    form, error = WRONG[what]
    draft = make(**form)
    with pytest.raises(error, match=draft.name):
        open_llama(target, draft=draft)


def test_tried_with_its_target(open_llama, make, target, tmp_path, monkeypatch):
    """In a child; then it drafts."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    llm = open_llama(target, draft=make(), trust=False)
    ask(llm, llm.tokenize(PROMPT, add_bos=False), 20)
    assert llm.last_speculation["drafted"] > 0


def test_auto_finds_it_beside_its_model(open_llama, make, tmp_path, monkeypatch):
    """By its name; one that does not fit is left out for the next, which is said."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    model = tiny.write(tmp_path / "model.gguf", n_layer=40)
    make(layers=[3, 99]).rename(tmp_path / "a-dflash.gguf")
    tiny_dflash.write(tmp_path / "b-dspark-draft.gguf", markov=True, confidence=True)
    llm = open_llama(model, draft="auto", trust=False)
    assert llm.assembly.draft == "lookup+b-dspark-draft"
    assert "a-dflash" in llm.assembly.notes[0]
