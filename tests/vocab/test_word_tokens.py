"""Texts are split at single-token words as llama.cpp does it, without its time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp
import pytest
from helpers import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspec.engine.target import TargetLlama
from pyspec.errors import InputError
from pyspec.vocab import tokenizer as word_tokens

MARKS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "[INST]", "<|im|>", "<|", "<\uff5cUser\uff5c>"]  # fmt: skip
PIECES = [*MARKS, "a", " ", "\n", "<", "im_end", "|>", "\u2603", " b c ", "<s>", "</s>"]


@pytest.fixture(scope="module", params=[("gpt2", False), ("llama", False), ("gpt2", True), ("llama", True)])  # fmt: skip
def opened(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetLlama]:
    model, defined = request.param
    path = tmp_path_factory.mktemp("splits") / "v.gguf"
    how = {"kind": tiny.USER_DEFINED} if defined else {}
    tiny.write_vocabulary(path, None, MARKS, model=model, **how)
    llm = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False)
    yield llm
    llm.close()


def by_llama_cpp(llm: TargetLlama, text: bytes, add_bos: bool, special: bool) -> list[int]:
    tokens = (ctypes.c_int32 * (len(text) + 8))()
    n = llama_cpp.llama_tokenize(llm._model.vocab, text, len(text), tokens, len(tokens), add_bos, special)  # fmt: skip
    return list(tokens[:n])


@settings(max_examples=80)
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=30),
    add_bos=st.booleans(),
    special=st.booleans(),
)
def test_same_tokens_as_llama_cpps_own(
    pieces: list[str], add_bos: bool, special: bool, opened: TargetLlama
) -> None:
    text = "".join(pieces).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_tokens, "SHORT", 0)
        found = opened.tokenize(text, add_bos=add_bos, special=special)
    assert found == by_llama_cpp(opened, text, add_bos, special)


def test_words_are_found_once_each(opened: TargetLlama) -> None:
    """Work grows with the text: a text of many words costs llama.cpp no search of its own."""
    text, asked = "a<|im_end|>b" * 5000, []
    tokenizer = opened.tokenizer_
    with pytest.MonkeyPatch.context() as patch:
        of = tokenizer._tokens
        patch.setattr(tokenizer, "_tokens", lambda *args: (asked.append(args[0]), of(*args))[1])
        tokens = tokenizer.tokenize(text.encode(), special=True)
    assert tokens.count(tiny.mark(1)) == 5000
    assert len(asked) < 10


def test_detokenizing_reads_each_piece_once(opened: TargetLlama) -> None:
    ids = [tiny.mark(0), tiny.mark(1)] * 5000
    assert opened.detokenize(ids, special=True) == b"<|im_start|><|im_end|>" * 5000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llama_cpp.llama_token_to_piece", None)
        assert opened.detokenize(ids, special=True) == b"<|im_start|><|im_end|>" * 5000


def test_a_text_that_takes_too_long_is_refused(opened: TargetLlama) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_tokens, "BUDGET_S", -1.0)
        with pytest.raises(InputError, match="longer than"):
            opened.tokenize(b"a<|im_end|>" * 100)
