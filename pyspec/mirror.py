"""Keeping llama-cpp-python's own fields true while another loop decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from pyspec.errors import EngineError
from pyspec.scores import ScoreRows
from pyspec.target import TargetLlama

_NEVER_DECODED = (1, 1)
"""llama.cpp's answer before the first decode, and after its counters were reset."""


class Closed:
    """Stands for what `close` freed: any use is a clear error."""

    def __getattr__(self, name: str) -> Any:
        raise closed_error()


def closed_error() -> EngineError:
    """What any use after `close` raises."""
    return EngineError("this SpeculativeLlama is closed", "make a new one")


class Mirror(TargetLlama):
    """A `Llama` whose `input_ids`, `n_tokens` and scores follow what a session decodes on its context.

    llama-cpp-python and its users read those fields: for prefix reuse, saved states, stopping criteria and logprobs.
    """

    n_tokens: int
    input_ids: npt.NDArray[np.intc]

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        self._rows: ScoreRows | None = None
        self._wants_logprobs = self._all_logits = self._plain = False
        self._own_text: list[int] = []
        self._at_rest = _NEVER_DECODED
        super().__init__(model_path, **kwargs)
        # with a score buffer of its own, or as an embedder, llama-cpp-python's plain path serves
        self._plain = self._all_logits or bool(kwargs.get("embedding"))
        self._widen()
        if not self._plain:
            # the score buffer, n_batch x n_vocab floats, is never filled here
            self.scores = np.empty((0, self._n_vocab), dtype=np.single)

    def _widen(self) -> None:
        """llama.cpp rounds a context up; make the buffers that llama-cpp-python sized as asked hold all of it."""
        if len(self.input_ids) < self._n_ctx:
            ids = np.zeros(self._n_ctx, dtype=np.intc)
            ids[: len(self.input_ids)] = self.input_ids
            self.input_ids = ids
        if self._all_logits and len(self.scores) < self._n_ctx:
            self.scores = np.empty((self._n_ctx, self._n_vocab), dtype=np.single)

    def _held(self, tokens: Sequence[int]) -> int:
        """-1 where the context holds what this class left there, else how many of `tokens` it begins with."""
        ids = self.input_ids[: self.n_tokens].tolist()
        if ids == self._own_text[: self.n_tokens] and self.n_tokens == max(
            0, len(self._own_text) - 1
        ):
            return 0 if self._used_by_others() else -1
        same = 0
        while same < len(ids) and same < len(tokens) and ids[same] == tokens[same]:
            same += 1
        return same

    def _decoded(self) -> tuple[int, int]:
        """Tokens that llama.cpp has decoded on this context, in batches and singly."""
        seen = llama_cpp.llama_perf_context(self._ctx.ctx)
        return seen.n_p_eval, seen.n_eval

    def _used_by_others(self) -> bool:
        """Whether another program decoded on this context (guidance does) and did not tell by `input_ids`."""
        now = self._decoded()
        return now not in (self._at_rest, _NEVER_DECODED)

    def _follow(self, text: list[int]) -> None:
        """Let `input_ids` and `n_tokens` say what the KV holds: all of the text but its last token."""
        held = min(len(text) - 1, len(self.input_ids))
        first = self.n_tokens if self._own_text is text else 0
        self.input_ids[first:held] = text[first:held]
        self.n_tokens = held
        self._own_text = text
        self._requires_eval = True

    @property
    def _logits_all(self) -> bool:
        # read by llama-cpp-python where it wants to know whether logprobs can be had: here they always can
        return self._all_logits or self._wants_logprobs

    @_logits_all.setter
    def _logits_all(self, value: bool) -> None:
        self._all_logits = value

    @property
    def _scores(self) -> Any:
        if self._rows is not None:
            return self._rows
        return super()._scores if self._plain else ScoreRows(0, [], self._n_vocab)

    def _adopt(self, text: list[int], held: int) -> None:
        """Take a text as it stands: its first `held` tokens are in the KV."""
        self._own_text = text[: held + 1]
        self._at_rest = self._decoded()
        self.input_ids[:held] = text[:held]
        self.n_tokens = held

    def _keep_rows(self, n_prompt: int, rows: Any) -> None:
        """Where the logits of emitted tokens are, for logprobs; None for nowhere."""
        self._rows = None if rows is None else ScoreRows(n_prompt - 1, rows, self._n_vocab)
