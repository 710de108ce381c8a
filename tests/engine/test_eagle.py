"""EAGLE-3 drafts in the engine: what they draft is what a forward pass in numpy drafts, whatever came before."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import tiny, tiny_eagle
from helpers.answers import GREEDY, ask, counters, drafted

from pyspec.engine.assembly import Assembly
from pyspec.engine.handle import Role
from pyspec.engine.models import SideOptions
from pyspec.engine.selection import choose_parts
from pyspec.engine.target import TargetLlama
from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel
from pyspec.policy.simple import FixedPolicy
from pyspec.sampling.limits import MAX_DRAFT

FORMS = {
    "own": {},
    "borrowed": {"embeddings": False, "head": False},
    "borrowed-embeddings": {"embeddings": False},
    "listed": {"d2t": range(3, 31, 2)},
    "normed-residual": {"norm_before_residual": True},
    "normed-input": {"norm_before_fc": True},
    "wider": {"width": 48},
}
PROMPT = b"abcabdabe"


@pytest.fixture(scope="module")
def target(tiny_folder):
    return tiny.write(tiny_folder / "eagle-target.gguf", n_layer=tiny_eagle.N_LAYER)


@pytest.fixture
def make(tmp_path):
    """Writes an EAGLE-3 draft."""
    names = count()
    return lambda **form: tiny_eagle.write(tmp_path / f"eagle{next(names)}.gguf", **form)


def check(llm, draft, target, n=6):
    """The engine's draft after the text it holds is numpy's."""
    text = llm.session.tokens
    found, chances = drafted(llm, n)
    wanted, likely = tiny_eagle.Draft(draft, target).draft(text, n)
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
        check(llm, draft, target)


def test_few_rows_at_a_time(open_llama, make, target):
    """As many states go through the encoder at once as its context takes: llama.cpp ends the process for more."""
    draft = make()
    llm = open_llama(target, draft=draft, n_ubatch=8)
    ask(llm, llm.tokenize(PROMPT * 2, add_bos=False), 12)
    check(llm, draft, target)


def test_text_is_the_targets(open_llama, make, target):
    """Over texts that begin alike, go back, or have nothing in common."""
    llm, plain = open_llama(target, draft=make()), open_llama(target)
    for text in (PROMPT, b"abcabdabezz", b"abcab", b"xyz", PROMPT):
        prompt = llm.tokenize(text, add_bos=False)
        assert ask(llm, prompt, 40).ids == ask(plain, prompt, 40).ids


def test_some_drafts_are_accepted(open_llama, make, target):
    """The draft's own states carry it over more than one token; accepted rows are decoded again with the target's."""
    llm = open_llama(target, draft=make(output=fitted_head(open_llama, make, target)))
    prompt = llm.tokenize(PROMPT, add_bos=False)
    ask(llm, prompt, 120)
    block = llm.last_speculation
    assert block["accepted"] > 20
    assert counters(llm.assembly.engine).refed == block["accepted"]


def test_the_policy_hears_what_is_read_again(open_llama, make, target):
    """A place says that this draft reads accepted tokens again, and how many; a round, how many it has read again."""
    llm = open_llama(target, draft=make(output=fitted_head(open_llama, make, target)))
    policy = Diary(4)
    list(llm.steps(llm.tokenize(PROMPT, add_bos=False), GREEDY, max_tokens=60, policy=policy))
    assert all(place.rereads for place in policy.places)
    accepted = [outcome.seqs[0].n_accepted for outcome in policy.outcomes]
    assert sum(accepted) > 10
    assert [place.lag for place in policy.places[1 : len(accepted) + 1]] == accepted[:-1]
    assert [outcome.caught_up for outcome in policy.outcomes[1:]] == accepted[:-1]


class Diary(FixedPolicy):
    """Keeps what it hears."""

    def __init__(self, k):
        super().__init__(k)
        self.places, self.outcomes = [], []

    def plan(self, places):
        """See Policy."""
        self.places += [place for place in places if place.room > 0]
        return super().plan(places)

    def observe(self, outcome):
        """See Policy."""
        self.outcomes.append(outcome)
        super().observe(outcome)


def fitted_head(open_llama, make, target):
    """A head that repeats the target's own text: least squares from the draft's states to the tokens that follow."""
    llm, draft = open_llama(target), make()
    text = llm.tokenize(PROMPT, add_bos=False)
    text = [*text, *ask(llm, text, 120).ids]
    numpy = tiny_eagle.Draft(draft, target)
    states = numpy.states(text[1:], numpy.encode(text)[:-1])[:-1]
    features = states / np.sqrt((states**2).mean(-1, keepdims=True) + 1e-5)
    wanted = np.eye(tiny.N_VOCAB)[text[2:]]
    ridge = features.T @ features + 0.1 * np.eye(features.shape[1])
    return np.linalg.solve(ridge, features.T @ wanted).T.astype(np.float32) * 12


def test_a_long_prompt_is_read_through_the_window(open_llama, make, target, monkeypatch):
    """The first draft of a text reads no further back, and drafts what numpy drafts of that part."""
    from pyspec.store.heads import States

    monkeypatch.setattr(States, "window", 8)
    draft = make()
    llm = open_llama(target, draft=draft, length="fixed:0")
    prompt = llm.tokenize(b"abcdefghij" * 11, add_bos=False)
    for text in (prompt, [*prompt, *prompt[:40]]):
        ask(llm, text, 3)
        found, chances = drafted(llm, 6)
        held = llm.session.tokens
        wanted, likely = tiny_eagle.Draft(draft, target).draft(held, 6, since=len(held) - 8)
        n = wanted.index(tiny.EOS) + 1 if tiny.EOS in wanted else 6
        assert found == wanted[:n]
        assert np.allclose(chances, likely[:n], atol=0.02)


def test_to_the_end_of_the_context(open_llama, make, target):
    """It drafts no further than the context reaches, and the text is the target's to the last token."""
    llm, plain = open_llama(target, draft=make(), n_ctx=256), open_llama(target, n_ctx=256)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    ours, theirs = ask(llm, prompt, None), ask(plain, prompt, None)
    assert ours.ids == theirs.ids
    assert ours.finish_reason == "context"


@pytest.mark.parametrize("after", [1, 2, 3])
def test_cancel_leaves_it_right(open_llama, make, target, after):
    """After a cancel the next answer and the next draft are what they would have been."""
    draft = make()
    llm, plain = open_llama(target, draft=draft), open_llama(target)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    for i, _ in enumerate(llm.steps(prompt, max_tokens=40)):
        if i == after:
            llm.cancel()
    assert ask(llm, prompt, 30).ids == ask(plain, prompt, 30).ids
    check(llm, draft, target)


def test_several_sequences_draft_as_each_alone(open_llama, make, target):
    """In one lock-step batch, with a shared prefix copied from one to the other."""
    from pyspec.batch.contexts import Contexts, Layout, Models

    draft = make()
    models = Models(str(target), str(draft), "none", n_threads=1, n_threads_batch=1)
    try:
        contexts = Contexts(models, 4, 128, Layout(512, each=0), SideOptions())
        engine = contexts.engine
        texts = [models.target.tokenize(t, add_bos=False) for t in (b"abcabdabe", b"abcabdx", b"z")]
        engine.set_tokens(1, texts[0])
        engine.verify([(1, 6, -1)])
        engine.copy_prefix(1, 2, 6)
        for seq, text in enumerate(texts, 1):
            engine.set_tokens(seq, text)
        work = [(seq, 0, 0) for seq in (1, 2, 3)]
        engine.verify(work)
        from pyspec.engine.handle import Gate
        from pyspec.sampling.verification import Strict

        for seq, text in enumerate(texts, 1):
            verdict = engine.accept(seq, 0, Gate(Strict(), False))
            text.append(verdict.token[0])
        engine.set_stop([0.0], None)
        engine.draft([1, 2, 3], [5, 3, 4])
        for seq, text, n in zip((1, 2, 3), texts, (5, 3, 4)):
            view = engine.drafted(seq)
            assert list(view.token[0 : view.n]) == tiny_eagle.Draft(draft, target).draft(text, n)[0]
        assert engine.held(Role.DRAFT, 1) <= len(texts[0]) + MAX_DRAFT
        contexts.close()
    finally:
        models.close()


@pytest.mark.parametrize(("arch", "layers"), [("qwen35", (0, 2, 4)), ("lfm2", (1, 2, 3))])
def test_on_a_hybrid_target(open_llama, make, tmp_path, arch, layers):
    """The text is the target's, and drafts after many rounds are those of a session that reads the text afresh.

    Layer 4 of four is what comes out of the last one.
    """
    hybrid = tiny.write(tmp_path / "hybrid.gguf", arch=arch, n_layer=4)
    draft = make(layers=layers)
    llm, fresh = open_llama(hybrid, draft=draft), open_llama(hybrid, draft=draft)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    assert ask(llm, prompt, 40).ids == ask(open_llama(hybrid), prompt, 40).ids
    text = llm.session.tokens
    assert ask(fresh, text[:-1], 1).ids == text[-1:]
    assert drafted(llm, 6)[0] == drafted(fresh, 6)[0]


@pytest.mark.parametrize(
    ("form", "error", "words"),
    [
        ({"hidden": 64}, DraftMismatch, "states 64 wide"),
        ({"layers": (1, 2, 9)}, DraftMismatch, "layers"),
        ({"layers": (1, 2)}, ModelInvalid, "three layers"),
        ({"layers": (1, 2, 4)}, UnsupportedModel, "does not expose"),
        ({"width": 48, "embeddings": False}, DraftMismatch, "48 wide"),
        ({"d2t": range(3, 40)}, DraftMismatch, "outside"),
        ({"d2t": range(3, 9), "head": False}, DraftMismatch, "vocabulary"),
        ({"n_layer": 2}, ModelInvalid, "more than one layer"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_what_does_not_fit_is_refused(open_llama, make, target, form, error, words):
    """llama.cpp would end the process on each of these."""
    with pytest.raises(error, match=words):
        open_llama(target, draft=make(**form))


def test_architectures_without_layers_are_refused(open_llama, make, tiny_sliding):
    """Asked for the layers of a model that does not keep them, llama.cpp would end the process."""
    with pytest.raises(UnsupportedModel, match="gemma3"):
        open_llama(tiny_sliding, draft=make())


def test_a_target_that_is_freed_first_takes_its_engine_off(make, target):
    """Objects that go together go in any order; what an engine asks of a context that is gone would end the process."""
    llm = TargetLlama(str(target), n_ctx=256, verbose=False)
    assembly = Assembly(llm, choose_parts(llm, str(make()), "none"))
    llm.close()
    assert not assembly.engine.detach.alive
    assembly.close()


def test_a_llama_cpp_without_states_is_refused(open_llama, make, target, monkeypatch):
    """Where the functions are not exported the sentence says so."""
    monkeypatch.setattr("pyspec.engine.selection.STATES_SHOWN", False)
    with pytest.raises(UnsupportedModel, match="this build"):
        open_llama(target, draft=make())


@pytest.mark.parametrize("shown", [True, False])
def test_auto_takes_it_where_states_are_shown(open_llama, make, target, monkeypatch, shown):
    """Elsewhere the text itself drafts, and the model opens all the same."""
    entry = SimpleNamespace(name=str(make()))
    monkeypatch.setattr("pyspec.engine.selection.offers_for", lambda *_: [entry])
    monkeypatch.setattr("pyspec.engine.selection.cached", lambda each: Path(each.name))
    monkeypatch.setattr("pyspec.engine.selection.drafts_here", lambda _: iter(()))
    monkeypatch.setattr("pyspec.engine.selection.STATES_SHOWN", shown)
    llm = open_llama(target, draft="auto")
    assert llm.assembly.draft.startswith("lookup+eagle" if shown else "lookup")
    assert llm.assembly.loop.draft_model is shown
