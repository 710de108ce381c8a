"""Case 26 at every place: each decode of an answer fails once, or from there on, under the whole of Python.

llama.cpp's `llama_decode` is replaced in the extension's table by one that answers with an error instead of decoding.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp
import pytest
import tiny
from answers import GREEDY, ask

from pyspec._lib import check, ffi, lib
from pyspec.batch import Batch, Settings
from pyspec.engine.handle import Role
from pyspec.errors import EngineError

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
ANSWERS = (1, -1, -3)
"""No room in the KV, a bad batch, and a computation that failed; 2 is a cancel."""


class Decodes:
    """`llama_decode` as the extension calls it; the `at`-th of a role fails, with those after it if it is to last."""

    def __init__(self) -> None:
        original = llama_cpp.llama_cpp._lib.llama_decode
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, llama_cpp.llama_batch)
        self._index = next(
            i for i in range(999) if ffi.string(lib.ps_api_name(i)) == b"llama_decode"
        )
        self._call = kind(ctypes.cast(original, ctypes.c_void_p).value)
        self._mine = kind(self._decode)  # kept as long as the extension may call it
        self.contexts: dict[int, Role] = {}
        self.arm(Role.TARGET, 0)
        self._bind(self._mine)

    def arm(self, role: Role, at: int, lasts: bool = False, answer: int = -3) -> None:
        """at: 1 for the next decode of that role, 0 for none."""
        self._role, self._at, self._lasts, self._answer = role, at, lasts, answer
        self._seen = self.failed = 0

    def restore(self) -> None:
        """llama.cpp's own again."""
        self._bind(self._call)

    def _bind(self, function: Any) -> None:
        address = ctypes.cast(function, ctypes.c_void_p).value
        check(lib.ps_api_bind(self._index, ffi.cast("void *", address)))

    def _decode(self, context: int, batch: Any) -> int:
        if self.contexts.get(context, Role.TARGET) is self._role:
            self._seen += 1
            if self._at and (self._seen == self._at or (self._lasts and self._seen > self._at)):
                self.failed += 1
                return self._answer
        return int(self._call(context, batch))


@pytest.fixture
def decodes() -> Iterator[Decodes]:
    """The table with ours in it."""
    made = Decodes()
    yield made
    made.restore()


@pytest.fixture
def llm(open_llama, tiny_target, tiny_draft, tiny_companion, decodes):
    """A target with a draft and a companion, which both work."""
    made = open_llama(
        tiny_target, draft=tiny_draft, companion=tiny_companion, length="companion", n_ctx=512
    )
    decodes.contexts = {
        int(ffi.cast("uintptr_t", side.context)): role
        for role, side in zip((Role.DRAFT, Role.COMPANION), made._assembly.models)
    }
    return made


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-there-on"])
@pytest.mark.parametrize("role", [Role.DRAFT, Role.COMPANION])
def test_a_failing_side_changes_no_text(llm, decodes, role, lasts) -> None:
    """Whichever decode of draft or companion fails, the answer is the target's, and so is the next."""
    reference = ask(llm, PROMPT).ids
    k = 0
    while k == 0 or decodes.failed:
        k += 1
        decodes.arm(role, k, lasts, ANSWERS[k % 3])
        assert ask(llm, PROMPT).ids == reference, k
    assert k > 5  # it was used, and failed at each of these places
    assert ask(llm, PROMPT).ids == reference


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-there-on"])
def test_a_failing_target_is_one_error(llm, decodes, lasts) -> None:
    """Whichever decode of the target fails, what came before is right, an EngineError says so, and the next answer is right."""
    reference = ask(llm, PROMPT).ids
    k, failed = 0, True
    while failed:
        k += 1
        decodes.arm(Role.TARGET, k, lasts, ANSWERS[k % 3])
        ids: list[int] = []
        try:
            for step in llm.steps(PROMPT, GREEDY, max_tokens=40):
                ids += [token.id for token in step.tokens]
            assert not decodes.failed, k
        except EngineError:
            assert decodes.failed, k
        failed = bool(decodes.failed)
        assert ids == reference[: len(ids)], k
        decodes.arm(Role.TARGET, 0)
        assert ask(llm, PROMPT).ids == reference, k
    assert k > 5


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-there-on"])
def test_a_failing_target_ends_no_batch(tiny_target, decodes, lasts) -> None:
    """Each record is answered rightly or is its own failure; none is lost, and the next batch is right."""
    prompts = ["abc", "bcd", "cde"]
    options = {"draft": "none", "companion": "none", "n_ctx": 256, "parallel": 2, "n_threads": 1}
    settings = Settings(max_tokens=8, raw=True)
    with Batch(str(tiny_target), settings=settings, **options) as batch:
        wanted = [result.text for result in batch.run(prompts)]
        k, failed = 0, True
        while failed:
            k += 1
            decodes.arm(Role.TARGET, k, lasts, ANSWERS[k % 3])
            results = list(batch.run(prompts))
            failed = bool(decodes.failed)
            decodes.arm(Role.TARGET, 0)
            assert len(results) == len(prompts), k
            right = [result.error or result.text == text for result, text in zip(results, wanted)]
            assert all(right), (k, results)
            assert failed or not any(result.error for result in results), k
            assert [result.text for result in batch.run(prompts)] == wanted, k
    assert k > 5
