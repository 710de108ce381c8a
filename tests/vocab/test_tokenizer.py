"""No text ends the process or keeps it for ever, whichever way a vocabulary splits texts into words."""

import ctypes
import os
import threading
from contextlib import contextmanager
from functools import partial

import llama_cpp
import pytest
from fuzz.bases import PRE
from helpers import tiny
from helpers.forked import fork
from helpers.make_gguf import tiny_words
from helpers.waiting import DEADLINE_S
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec import vocab
from pyspec.engine.target import TargetLlama
from pyspec.errors import EngineError, InputError
from pyspec.vocab import call_with_stack

RUNS = ("a", "7", " ", "-", "\n", "\u4e16", "aA", "ab cd ")

UNSPELLED = ("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace")
"""Those that do not spell bytes as the tiny vocabulary does."""


def split(path, pre, _report):
    llm = TargetLlama(str(path), vocab_only=True, verbose=False, trust=True)
    for text in ((run * 100_000)[:100_000] for run in RUNS):
        try:
            found = llm.detokenize(llm.tokenize(text.encode(), add_bos=False)).decode()
        except InputError:
            assert pre in ("superbpe", "deepseek-llm"), text[:9]
        else:
            assert found == text or pre in UNSPELLED, text[:9]
    os._exit(0)


@contextmanager
def vocabulary(folder, pre):
    path = folder / f"{pre}.gguf"
    path.write_bytes(tiny_words(pre).build())
    llm = TargetLlama(str(path), vocab_only=True, verbose=False, trust=True)
    yield llm
    llm.close()


SOME = ("tekken", "falcon", "bloom", "exaone-moe", "deepseek-v3")


@pytest.mark.parametrize(
    "pre", [pytest.param(pre, marks=[pytest.mark.slow] * (pre not in SOME)) for pre in PRE]
)
def test_long_runs(pre, tmp_path):
    """100,000 characters of one kind become tokens, where llama.cpp's own call is deeper than the stack."""
    path = tmp_path / "words.gguf"
    path.write_bytes(tiny_words(pre).build())
    end = fork(partial(split, path, pre), DEADLINE_S)
    assert end.status == 0, end.where


@pytest.mark.parametrize("pre", ["tekken", "qwen2", "default"])
def test_a_deep_call_gives_the_same_tokens(pre, tmp_path, monkeypatch):
    text = "".join(run * 300 for run in RUNS).encode()
    with vocabulary(tmp_path, pre) as llm:
        deep = llm.tokenize(text)
        monkeypatch.setattr(vocab, "SHALLOW", len(text))
        assert llm.tokenize(text) == deep


def test_too_long_a_paragraph_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(vocab, "MAX_STACK", 4 << 20)
    with vocabulary(tmp_path, "tekken") as llm:
        with pytest.raises(InputError, match="lines"):
            llm.tokenize(b"-" * 10_000)
        assert llm.tokenize(b"a-\n" * 4000)


@pytest.mark.parametrize(("pre", "run"), [("superbpe", "7"), ("deepseek-llm", " ")])
def test_runs_that_would_take_minutes_are_refused(pre, run, tmp_path):
    """Their expressions are tried from each character of a run to its end."""
    with vocabulary(tmp_path, pre) as llm:
        for text in (f"{run * 100_000}\u4e16", f"{run * 2000}\u4e16" * 50):
            with pytest.raises(InputError, match="minutes"):
                llm.tokenize(text.encode())
        assert llm.tokenize(f"{run * 500}\u4e16".encode())


@pytest.mark.parametrize("pre", ["smollm", "whitespace", "default"])
@pytest.mark.parametrize(
    "text", [b"\xf7\xbf\xbf\xbf", b"a\xf4\x90\x80\x80b", b"\xed\xa0\x80\xff\xc0", b"a  b \n c"]
)
def test_any_bytes(text, pre, tmp_path):
    """llama.cpp throws through C for numbers above U+10FFFF, and asserts for two spaces of some vocabularies."""
    with vocabulary(tmp_path, pre) as llm:
        assert llm.tokenize(text + b"a", add_bos=False)


def test_bytes_beyond_unicode_are_damaged_text(tmp_path):
    with vocabulary(tmp_path, "qwen2") as llm:
        assert llm.tokenize(b"a\xf7\xbf\xbf\xbfb") == llm.tokenize("a\ufffdb".encode())


def test_what_a_deep_call_raises_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        call_with_stack(lambda: 1 // 0, 1 << 20)
    with pytest.raises(EngineError, match="memory"):
        call_with_stack(lambda: 1, 1 << 46)


def test_a_thread_with_such_a_stack_is_not_started_twice():
    """A schema's parts are tried one by one: each by a thread of its own would take a hundred times as long."""
    outer, inner, more = call_with_stack(
        lambda: (
            threading.get_ident(),
            call_with_stack(threading.get_ident, 1 << 20),
            call_with_stack(threading.get_ident, 1 << 22),
        ),
        1 << 20,
    )
    assert outer == inner != more


@given(text=st.text(max_size=60) | st.lists(st.sampled_from(RUNS), max_size=30).map("".join))
def test_fewest_is_a_lower_bound(text, counted):
    data = text.encode("utf-8", "replace")
    assert counted.tokenizer_.fewest(data) <= len(counted.tokenize(data, add_bos=False))


@pytest.fixture(scope="module", params=["tekken", "default", "gemma4", "whitespace"])
def counted(request, tmp_path_factory):
    with vocabulary(tmp_path_factory.mktemp("counted"), request.param) as llm:
        yield llm


MARKS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]", "<|im|>", "<|", "<\uff5cUser\uff5c>"]  # fmt: skip
PIECES = [*MARKS, "a", " ", "\n", "<", "im_end", "|>", "\u2603", " b c ", "<s>", "</s>"]


@pytest.fixture(scope="module", params=[("gpt2", False), ("llama", False), ("gpt2", True), ("llama", True)])  # fmt: skip
def opened(request, tmp_path_factory):
    model, defined = request.param
    path = tmp_path_factory.mktemp("splits") / "v.gguf"
    how = {"kind": tiny.USER_DEFINED} if defined else {}
    tiny.write_vocabulary(path, None, MARKS, model=model, **how)
    llm = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False)
    yield llm
    llm.close()


def by_llama_cpp(llm, text, add_bos, special):
    tokens = (ctypes.c_int32 * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(llm._model.vocab, text, len(text), tokens, len(tokens), add_bos, special)  # fmt: skip
    return list(tokens[:n])


@settings(max_examples=80)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=30),
    add_bos=st.booleans(),
    special=st.booleans(),
)
def test_same_tokens_as_llama_cpps_own(pieces, add_bos, special, opened):
    text = "".join(pieces).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocab, "SHORT", 0)
        found = opened.tokenize(text, add_bos=add_bos, special=special)
    assert found == by_llama_cpp(opened, text, add_bos, special)


def test_words_are_found_once_each(opened):
    """Work grows with the text: a text of many words costs llama.cpp no search of its own."""
    text, asked = "a<|im_end|>b" * 5000, []
    tokenizer = opened.tokenizer_
    with pytest.MonkeyPatch.context() as patch:
        of = tokenizer._tokens
        patch.setattr(tokenizer, "_tokens", lambda *args: (asked.append(args[0]), of(*args))[1])
        tokens = tokenizer.tokenize(text.encode(), special=True)
    assert tokens.count(tiny.mark(1)) == 5000
    assert len(asked) < 10


def test_a_text_that_takes_too_long_is_refused(opened):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocab, "BUDGET_S", -1.0)
        with pytest.raises(InputError, match="longer than"):
            opened.tokenize(b"a<|im_end|>" * 100)
