"""EAGLE-3 and DFlash, which read the target's states: they draft what a forward pass in numpy drafts, whatever came before."""

from itertools import count

import numpy as np
import pytest
from helpers import tiny, tiny_dflash, tiny_eagle
from helpers.answers import GREEDY, Diary, ask, check_four_at_once, counters, drafted

from pyspec.engine.assembly import Assembly, choose_parts
from pyspec.engine.contexts import Layout
from pyspec.engine.handle import Role
from pyspec.engine.target import TargetLlama
from pyspec.errors import DraftMismatch, ModelInvalid, UnsupportedModel
from pyspec.gguf.kinds import States

PROMPT = b"abcabdabe"
EAGLE_FORMS = {
    "own": {}, "borrowed": {"embeddings": False, "head": False}, "borrowed-embeddings": {"embeddings": False},
    "listed": {"d2t": range(3, 31, 2)}, "normed-residual": {"norm_before_residual": True},
    "normed-input": {"norm_before_fc": True}, "wider": {"width": 48},
}  # fmt: skip
DFLASH_FORMS = {
    "own": {}, "borrowed": {"embeddings": False, "head": False}, "tied": {"head": False},
    "listed": {"d2t": range(3, 31, 2)}, "one-layer": {"layers": [2]}, "five-layers": {"layers": [0, 1, 2, 3, 3]},
    "causal": {"causal": True}, "dspark": {"markov": True},
    "dspark-sure": {"markov": True, "confidence": True},
    "dspark-bonus": {"markov": True, "confidence": True, "anchored": False},
    "dspark-listed": {"markov": True, "d2t": range(3, 31, 2)},
}  # fmt: skip
KINDS = {"eagle3": tiny_eagle, "dflash": tiny_dflash}
FORMS = [("eagle3", form) for form in EAGLE_FORMS.values()]
FORMS += [("dflash", form) for form in DFLASH_FORMS.values()]
NAMES = [*(f"eagle3-{name}" for name in EAGLE_FORMS), *(f"dflash-{name}" for name in DFLASH_FORMS)]

both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def target(tiny_folder):
    return tiny.write(tiny_folder / "read-target.gguf", n_layer=tiny_eagle.N_LAYER)


@pytest.fixture
def make(tmp_path):
    names = count()

    def make_(kind="eagle3", **form):
        return KINDS[kind].write(tmp_path / f"{kind}-{next(names)}.gguf", **form)

    return make_


def check(llm, kind, draft, target, n=6):
    text = llm.session.tokens
    found, chances = drafted(llm, n)
    wanted, likely = KINDS[kind].Draft(draft, target).draft(text, n)
    assert found == wanted
    assert np.allclose(chances, likely, atol=0.02)


# -- every kind --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "form"), FORMS, ids=NAMES)
def test_drafts_are_numpys(open_llama, make, target, kind, form):
    draft = make(kind, **form)
    llm = open_llama(target, draft=draft)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    for n in (1, 14):
        ask(llm, prompt, n)
        for length in {"eagle3": (6,), "dflash": (1, 5)}[kind]:
            check(llm, kind, draft, target, length)


@both
def test_text_is_the_targets(open_llama, make, target, kind):
    llm, plain = open_llama(target, draft=make(kind)), open_llama(target)
    for text in (PROMPT, b"abcabdabezz", b"abcab", b"xyz", PROMPT):
        prompt = llm.tokenize(text, add_bos=False)
        assert ask(llm, prompt, 40).ids == ask(plain, prompt, 40).ids


@both
def test_to_the_end_of_the_context(open_llama, make, target, kind):
    llm, plain = open_llama(target, draft=make(kind), n_ctx=256), open_llama(target, n_ctx=256)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    ours, theirs = ask(llm, prompt, None), ask(plain, prompt, None)
    assert ours.ids == theirs.ids
    assert ours.finish_reason == "context"
    assert len(llm.session.tokens) >= 256


@pytest.mark.parametrize("layout", [Layout(1024), Layout(1024, 256)])
@pytest.mark.parametrize(("kind", "form"), [
    ("eagle3", {}), ("dflash", {}), ("dflash", DFLASH_FORMS["dspark-sure"]),
], ids=["eagle3", "dflash", "dspark"])  # fmt: skip
def test_four_sequences(open_llama, make, target, kind, form, layout):
    check_four_at_once(open_llama, target, make(kind, **form), layout=layout)


@pytest.mark.parametrize(("kind", "form", "error", "words"), [
    ("eagle3", {"hidden": 64}, DraftMismatch, "states 64 wide"),
    ("eagle3", {"layers": (1, 2, 9)}, DraftMismatch, "layers"),
    ("eagle3", {"layers": (1, 2)}, ModelInvalid, "three layers"),
    ("eagle3", {"layers": (1, 2, 4)}, UnsupportedModel, "does not expose"),
    ("eagle3", {"width": 48, "embeddings": False}, DraftMismatch, "48 wide"),
    ("eagle3", {"d2t": range(3, 40)}, DraftMismatch, "outside"),
    ("eagle3", {"d2t": range(3, 9), "head": False}, DraftMismatch, "vocabulary"),
    ("eagle3", {"n_layer": 2}, ModelInvalid, "more than one layer"),
    ("dflash", {"width": 64}, DraftMismatch, "dflash"),
    ("dflash", {"layers": [1, 9]}, DraftMismatch, "dflash"),
    ("dflash", {"layers": [-1]}, DraftMismatch, "dflash"),
    ("dflash", {"mask": None}, ModelInvalid, "dflash"),
    ("dflash", {"mask": tiny.N_VOCAB}, ModelInvalid, "dflash"),
    ("dflash", {"block": 1}, ModelInvalid, "dflash"),
    ("dflash", {"selector": True}, UnsupportedModel, "dflash"),
    ("dflash", {"d2t": [3, 99]}, DraftMismatch, "dflash"),
], ids=lambda x: "-".join(x) if isinstance(x, dict) else x if x in KINDS else "")  # fmt: skip
def test_what_does_not_fit_is_refused(open_llama, make, target, kind, form, error, words):
    """llama.cpp would end the process on each of these."""
    draft = make(kind, **form)
    with pytest.raises(error, match=words) as raised:
        open_llama(target, draft=draft)
    assert draft.name in str(raised.value)


# -- EAGLE-3 -----------------------------------------------------------------------------------------------------------


def test_few_rows_at_a_time(open_llama, make, target):
    """As many states go through the encoder at once as its context takes: llama.cpp ends the process for more."""
    draft = make()
    llm = open_llama(target, draft=draft, n_ubatch=8)
    ask(llm, llm.tokenize(PROMPT * 2, add_bos=False), 12)
    check(llm, "eagle3", draft, target)


def test_some_drafts_are_accepted(open_llama, make, target):
    """The draft's own states carry it over more than one token; accepted rows are decoded again with the target's.

    The policy hears of it: a place says how many accepted tokens this draft reads again; a round, how many it has.
    """
    llm = open_llama(target, draft=make(output=fitted_head(open_llama, make, target)))
    policy, prompt = Diary(4), llm.tokenize(PROMPT, add_bos=False)
    list(llm.steps(prompt, GREEDY, max_tokens=120, policy=policy))
    block = llm.last_speculation
    assert block["accepted"] > 20
    assert counters(llm.assembly.engine).refed == block["accepted"]
    accepted = [outcome.seqs[0].n_accepted for outcome in policy.outcomes]
    places = [place for place in policy.places if place.room > 0]
    assert [place.lag for place in places[1 : len(accepted) + 1]] == accepted[:-1]
    assert [outcome.caught_up for outcome in policy.outcomes[1:]] == accepted[:-1]


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


@pytest.mark.parametrize("after", [1, 2, 3])
def test_cancel_leaves_it_right(open_llama, make, target, after):
    draft = make()
    llm, plain = open_llama(target, draft=draft), open_llama(target)
    prompt = llm.tokenize(PROMPT, add_bos=False)
    for i, _ in enumerate(llm.steps(prompt, max_tokens=40)):
        if i == after:
            llm.cancel()
    assert ask(llm, prompt, 30).ids == ask(plain, prompt, 30).ids
    check(llm, "eagle3", draft, target)


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


# -- DFlash and DSpark -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["own", "dspark-sure"])
def test_a_block_is_one_decode(open_llama, make, target, form):
    """Beside one that reads the text, however many tokens; no more come than the file was made for."""
    llm = open_llama(target, draft=make("dflash", **DFLASH_FORMS[form]))
    ask(llm, llm.tokenize(PROMPT, add_bos=False), 20)
    engine = llm.assembly.engine
    drafted(llm, 1)
    before = counters(engine).decodes[Role.DRAFT]
    most = tiny_dflash.BLOCK - (0 if "dspark" in form else 1)
    assert len(drafted(llm, 20)[0]) == most
    assert counters(engine).decodes[Role.DRAFT] == before + 1


def test_how_sure_it_is_stops_it(open_llama, make, target):
    draft = make("dflash", markov=True, confidence=True)
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
