"""Any `llama_cpp.llama_speculative.LlamaDraftModel` as a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pyspec.drafters.base import Drafter, Proposal


class DraftCallable(Protocol):
    """The shape of llama-cpp-python's draft models: ids in, ids out."""

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """Tokens that may follow `input_ids`."""


class ForeignDrafter(Drafter):
    """Asks a llama-cpp-python draft model, one text at a time."""

    def __init__(self, model: DraftCallable) -> None:
        self._model = model
        self.name = type(model).__name__

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Up to `limit` tokens, as the model gives them."""
        proposed = self._model(np.asarray(tokens, dtype=np.intc))
        return Proposal([int(token) for token in proposed[:limit]])
