"""Several next-token heads: the i-th drafted token is the i-th head's, as llama.cpp's own calls give it for the text alone."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import tiny_heads
from answers import ask
from fuzz.forked import fork
from llama_cpp import llama_cpp_ext as ext

from pyspec.batch.run import Batch
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.records import Record
from pyspec.store.heads import CHAINED_HEADS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

PROMPT = [100, 101, 102, 100, 101, 102, 100, 101]
EXACT: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "flash_attn": False, "verbose": False}


class Reference:
    """Drafts after a text by llama.cpp alone, each head in a context of its own that has read everything itself."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.load_mtp = True
        self._model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        self._width = llama_cpp.llama_model_n_embd(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    @contextmanager
    def _context(self, kind: int) -> Iterator[Any]:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.ctx_type = 256, kind
        params.n_threads = params.n_threads_batch = (
            1  # more leave a pool of threads, in which a fork waits for ever
        )
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = llama_cpp.llama_init_from_model(self._model, params)
        # as llama.cpp's server has it: states of all rows of the target, of the heads those of rows with logits
        ext.llama_set_embeddings_nextn(context, True, kind == llama_cpp.LLAMA_CONTEXT_TYPE_MTP)
        yield context
        llama_cpp.llama_free(context)

    def _decode(
        self, context: Any, tokens: Sequence[int], first: int, states: np.ndarray | None
    ) -> np.ndarray:
        """Decode with every row wanted; returns their states, [n, width]."""
        n = len(tokens)
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if states is not None:
            rows = np.ascontiguousarray(states, np.float32)
            batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert llama_cpp.llama_decode(context, batch) == 0
        batch.embd = None
        llama_cpp.llama_batch_free(batch)
        found = ext.llama_get_embeddings_nextn(context)
        return np.ctypeslib.as_array(found, shape=(n, self._width)).copy()

    def draft(self, text: Sequence[int], heads: Sequence[int]) -> list[int]:
        with self._context(llama_cpp.LLAMA_CONTEXT_TYPE_DEFAULT) as trunk:
            states = self._decode(trunk, text, 0, None)[:-1]
        drafted: list[int] = []
        for head in heads:
            with self._context(llama_cpp.LLAMA_CONTEXT_TYPE_MTP) as context:
                ext.llama_set_nextn_layer_offset(context, head)
                own = self._decode(context, [*text[1:], *drafted], 1, states)[-1:]
                row = llama_cpp.llama_get_logits_ith(context, -1)
                drafted.append(int(np.ctypeslib.as_array(row, shape=(self._n_vocab,)).argmax()))
            states = np.concatenate([states, own])
        return drafted


def drafted(llm: SpeculativeLlama, n: int) -> list[int]:
    engine = llm.assembly.engine
    engine.put_draft(0, ())
    engine.set_stop([0.0], None)
    engine.draft([0], [n])
    view = engine.drafted(0)
    return list(view.token[0 : view.n])


def look(path: Path, n_heads: int, draft: str, report: int) -> None:
    """What came of texts, drafts, and drafts of the reference, in a fork."""
    plain = SpeculativeLlama(str(path), draft="none", **EXACT)
    llm = SpeculativeLlama(str(path), draft=draft, length="fixed:6", **EXACT)
    reference, found = Reference(path), []
    same = llm.assembly.loop.draft_longest == n_heads
    for text in (PROMPT, [*PROMPT, 9, 9], PROMPT[:3], [20, 21]):
        for answered in (1, 2, 9, 30):
            same &= ask(llm, text, answered).ids == ask(plain, text, answered).ids
            held = llm.session.tokens
            ours, theirs = drafted(llm, 6), reference.draft(held, range(n_heads))
            found.append((ours, theirs, reference.draft(held, [0] * n_heads)))
    os.write(report, json.dumps([same, found]).encode())
    os._exit(0)


def written(folder: Path, arch: str, n_heads: int) -> Path:
    path = folder / f"{arch}.gguf"
    assert tiny_heads.write(path, arch, n_heads)
    return path


@pytest.mark.parametrize(
    ("arch", "n_heads"),
    [
        ("step35", 2),
        *(
            pytest.param(arch, n, marks=pytest.mark.slow)
            for arch in sorted(CHAINED_HEADS)
            for n in (2, 3)
        ),
    ],
)
def test_each_token_is_its_own_heads(
    arch: str, n_heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After answers in which drafts were accepted or refused and texts that go back; the text is plain decoding's."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    path = written(tmp_path, arch, n_heads)
    said, status, where = fork(partial(look, path, n_heads, "mtp"), 100)
    assert status == 0, (status, where)
    same, found = json.loads(said)
    assert same
    assert [ours for ours, _, _ in found] == [theirs for _, theirs, _ in found]
    assert any(ours != first for ours, _, first in found)  # the first head alone says others


def answer_four(path: Path, report: int) -> None:
    """Texts of four at once, with heads and without, and tokens drafted."""
    records = [
        Record(id=str(i), prompt="abca" + "bcd"[: i % 4], max_tokens=24, temperature=0.0)
        for i in range(4)
    ]
    texts, proposed = [], 0
    for draft in ("none", "mtp"):
        options = {**EXACT, "n_ctx": 64, "draft": draft, "length": "fixed:3"}
        with Batch(str(path), parallel=4, **options) as batch:
            found = sorted(batch.run(records), key=lambda result: result.id)
        texts.append([[result.text, result.finish_reason] for result in found])
        proposed = sum(result.speculation["drafted"] for result in found)
    os.write(report, json.dumps([*texts, proposed]).encode())
    os._exit(0)


def test_four_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))
    said, status, where = fork(partial(answer_four, written(tmp_path, "step35", 3)), 100)
    assert status == 0, (status, where)
    plain, with_heads, proposed = json.loads(said)
    assert with_heads == plain
    assert proposed > 20
