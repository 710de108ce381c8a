"""The names, signatures and fields that users of `llama_cpp.Llama` know."""

import copy
import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from helpers.completions import GREEDY, PROMPT, completed, greedy
from helpers.sources import ROOT

import pyspec
from pyspec.errors import EngineError, OptionError
from pyspec.hub.locate import resolve
from pyspec.llama.speculative import SpeculativeLlama

OUR_DEFAULTS = {"flash_attn": "auto", "verbose": False}


@pytest.mark.parametrize(
    "name", ["__init__", "__call__", "create_completion", "create_chat_completion", "generate"]
)
def test_signatures_are_the_originals(name):
    classes = (SpeculativeLlama, llama_cpp.Llama)
    ours, theirs = ([*inspect.signature(getattr(c, name)).parameters.values()] for c in classes)
    known = {parameter.name for parameter in theirs}
    assert [p.name for p in ours if p.name in known] == [p.name for p in theirs]
    for parameter, wanted in zip([p for p in ours if p.name in known], theirs):
        default = OUR_DEFAULTS.get(wanted.name, wanted.default)
        assert (parameter.kind, parameter.default) == (wanted.kind, default)
        assert parameter.name == "self" or parameter.annotation is not inspect.Parameter.empty
    assert all(p.kind is p.KEYWORD_ONLY for p in ours if p.name not in known)


def test_generate_takes_positions(pair):
    tokens = pair[0].tokenize(PROMPT.encode())
    found = []
    for llm in pair:
        llm.set_seed(4)
        stream = llm.generate(tokens, 7, 0.8, 0.02, 1.0, 1.3, 1.1)
        found.append([next(stream) for _ in range(20)])
    assert found[0] == found[1]


@pytest.mark.parametrize("call", ["generate", "create_completion", "create_chat_completion"])
def test_a_wrong_keyword_names_the_method(pair, call):
    """Nobody is told of arguments of a class he never called."""
    with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument 'top_q'"):
        getattr(pair[0], call)([], top_q=1)


@pytest.mark.parametrize(("top_p", "min_p"), [(0.0, 0.05), (1.5, -0.1), (0.5, 2.0)])
def test_truncation_out_of_range_is_the_originals(pair, top_p, min_p):
    """Clients send top_p 0 and more."""
    options = {"top_p": top_p, "min_p": min_p, "seed": 3, "max_tokens": 20}
    ours, theirs = (completed(llm, **options) for llm in pair)
    assert ours == theirs


# -- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("giver", "taker"), [(0, 0), (0, 1), (1, 0), (0, 2)])
def test_saved_states_go_all_ways(pair, open_llama, tiny_ascii, giver, taker):
    three = *pair, open_llama(tiny_ascii, n_ctx=1024)
    giver, taker = three[giver], three[taker]
    text = giver.create_completion(PROMPT, **GREEDY)["choices"][0]["text"]
    state = giver.save_state()
    taker.create_completion("zzyyxx", **GREEDY)
    taker.load_state(pickle.loads(pickle.dumps(state)))
    assert taker.n_tokens == state.n_tokens
    assert taker.input_ids[: taker.n_tokens].tolist() == state.input_ids[: state.n_tokens].tolist()
    prompt = PROMPT + text + "mm"
    assert greedy(taker, prompt) == greedy(three[1], prompt)
    if taker is not three[1]:
        assert taker.last_speculation["prompt_kept"] >= len(PROMPT) + 39


def test_a_state_of_another_context_is_refused(open_llama, tiny_ascii):
    other = open_llama(tiny_ascii, flash_attn=False)
    other.create_completion(PROMPT, **GREEDY)
    llm = open_llama(tiny_ascii)
    wanted = greedy(llm)
    with pytest.raises(EngineError, match="saved state"):
        llm.load_state(other.save_state())
    assert greedy(llm) == wanted


@pytest.mark.parametrize("how", [copy.deepcopy, lambda llm: pickle.loads(pickle.dumps(llm))])
def test_copies_load_the_model_anew(open_llama, tiny_ascii, how):
    llm = open_llama(tiny_ascii, draft=tiny_ascii, length="fixed:3", n_ctx=512)
    again = how(llm)
    try:
        assert again.n_ctx() == 512
        assert greedy(again) == greedy(llm)
        found, wanted = (each.last_speculation["accepted_by_position"] for each in (again, llm))
        assert found == wanted
    finally:
        again.close()


# -- logits ------------------------------------------------------------------------------------------------------------


def test_eval_leaves_the_last_logits(open_llama, open_plain, tiny_ascii):
    ours, theirs = open_llama(tiny_ascii), open_plain(tiny_ascii, logits_all=True)
    tokens = ours.tokenize(PROMPT.encode())
    for llm in (ours, theirs):
        llm.eval(tokens[:4])
        llm.eval(tokens[4:])
    assert len(ours.eval_logits) == 1
    np.testing.assert_allclose(ours.eval_logits[-1], theirs.eval_logits[-1], atol=2e-2)
    rows = [llm.scores[llm.n_tokens - 1] for llm in (ours, theirs)]
    np.testing.assert_allclose(*rows, atol=2e-2)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("n_batch", [512, 4])
def test_echoed_logprobs_are_the_models(
    open_llama, open_plain, tiny_ascii, monkeypatch, bos, n_batch
):
    ours = open_llama(tiny_ascii, draft=tiny_ascii, n_batch=n_batch)
    theirs = open_plain(tiny_ascii, logits_all=True)
    prompt = [1, *ours.tokenize(PROMPT.encode(), add_bos=False)][0 if bos else 1 :]
    text = ours.detokenize(prompt).decode()
    monkeypatch.setattr(ours._model, "add_bos_token", lambda: bos)
    result = ours.create_completion(text, echo=True, logprobs=2, **{**GREEDY, "max_tokens": 8})
    found = result["choices"][0]["logprobs"]
    assert result["usage"]["prompt_tokens"] == len(prompt)
    answer = ours.tokenize(result["choices"][0]["text"].encode(), add_bos=False)
    everything = [1, *answer] if bos else answer
    theirs.eval(everything)
    rows = theirs.logits_to_logprobs(theirs.scores[: len(everything)])
    wanted = [float(rows[i][token]) for i, token in enumerate(everything[1:])]
    start = 0 if bos else 1
    assert found["token_logprobs"][0] is None
    np.testing.assert_allclose(found["token_logprobs"][1:], wanted[1 - start :], atol=2e-2)
    asked = {"echo": True, "logprobs": 2, **GREEDY, "max_tokens": 1}
    (first, *_) = ours.create_completion(text, stream=True, **asked)  # which repeats no prompt
    streamed = first["choices"][0]["logprobs"]["token_logprobs"]
    np.testing.assert_allclose(streamed, wanted[len(prompt) - 1 :][:1], atol=2e-2)
    monkeypatch.undo()
    assert greedy(ours) == greedy(open_llama(tiny_ascii))


def test_vocab_only_is_a_tokenizer(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, vocab_only=True, draft="auto")
    assert llm.detokenize(llm.tokenize(b"abc")) == b"abc"
    with pytest.raises(EngineError, match="vocab_only"):
        next(llm.generate([5, 6]))


# -- several users -----------------------------------------------------------------------------------------------------


def test_a_turn_ends_after_its_answer(open_llama, tiny_ascii, monkeypatch):
    """Who waits for a stream that is closed begins when it has been put away, also where something still holds it."""
    llm = open_llama(tiny_ascii)
    in_flight = []

    @contextmanager
    def watched():
        with taken() as me:
            try:
                yield me
            finally:
                in_flight.append(llm.session.in_flight)

    taken = llm.answer_lock.taken
    monkeypatch.setattr(llm.answer_lock, "taken", watched)
    generate, held = llm.generate, []

    def kept(*args, **kwargs):
        held.append(generate(*args, **kwargs))
        return held[-1]

    monkeypatch.setattr(llm, "generate", kept)
    stream = llm.create_completion(PROMPT, max_tokens=20, stream=True)
    next(stream)
    stream.close()
    assert in_flight == [None]


@pytest.mark.parametrize("stream", [False, True])
def test_threads_wait_their_turn(open_llama, tiny_ascii, stream):
    llm = open_llama(tiny_ascii, draft=tiny_ascii, n_ctx=512)
    calls = [({"seed": i, "max_tokens": 40}, PROMPT + "abcd"[i]) for i in range(4)]
    wanted = [llm.create_completion(p, **o)["choices"][0]["text"] for o, p in calls]

    def work(call):
        options, prompt = call
        result = llm.create_completion(prompt, stream=stream, **options)
        chunks = result if stream else [result]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, calls)) == wanted


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), None])
def test_bad_waits_are_refused(open_llama, tiny_ascii, wait):
    with pytest.raises(OptionError, match="wait"):
        open_llama(tiny_ascii, wait=wait)


# -- install -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed():
    pyspec.install(draft="lookup", companion="none", length="fixed:4")
    yield
    pyspec.uninstall()


def test_install_reaches_those_who_have_the_class(installed, tiny_ascii, tiny_folder):
    """Also a module that imported it before; subclasses of others, and all after uninstall, are the original's."""

    class Theirs(llama_cpp.Llama):
        """Somebody's own."""

    options = {"n_threads": 1, "verbose": False, "n_ctx": 512}
    with llama_cpp.Llama(str(tiny_ascii), **options) as llm:
        assert isinstance(llm, SpeculativeLlama)
        greedy(llm, max_tokens=150)
        assert llm.last_speculation["accepted"] > 0
        again = pickle.loads(pickle.dumps(llm))
        assert isinstance(again, SpeculativeLlama)
        again.close()
    other = Theirs(str(tiny_ascii), **options)
    assert not isinstance(other, SpeculativeLlama)
    other.close()
    pyspec.uninstall()
    plain = llama_cpp.Llama(str(tiny_ascii), **options)
    assert type(plain) is llama_cpp.Llama
    plain.close()


def test_what_a_library_says_goes_first(installed, tiny_ascii):
    with llama_cpp.Llama(str(tiny_ascii), n_threads=1, draft="none", flash_attn=False) as llm:
        assert llm.create_completion(PROMPT, **GREEDY)["speculation"]["draft"] == "none"
        flash = llm.context_params.flash_attn_type
        assert flash == llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    with SpeculativeLlama(str(tiny_ascii), n_threads=1, draft="none") as llm:
        assert type(llm) is SpeculativeLlama


def test_a_name_stands_for_its_file(open_llama):
    assert Path(open_llama("smollm2-135m-instruct").model_path).samefile(resolve())


def test_naming_the_class_loads_neither_engine_nor_templates():
    code = "import sys; from pyspec import SpeculativeLlama; print(*sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    ours = [name for name in said.split() if name.partition(".")[0] == "pyspec"]
    assert len(ours) <= 60, ours
