"""The interface of drafters that live in Python, two calls, and llama-cpp-python's draft models behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens, and what they were taken from.

    match_length: of the text that they continue, 0 where there is no such thing; choices: how many different tokens have
    followed it so far. p, entropy: of a model that drafted them, its probability of each and the entropy of each choice
    in nats.
    """

    tokens: Sequence[int]
    match_length: int = 0
    choices: int = 1
    p: Sequence[float] = ()
    entropy: Sequence[float] = ()


NOTHING = Proposal(())


class Drafter(ABC):
    """Proposes tokens that may follow a text.

    One drafter serves several sequences, distinguished by `seq`. A drafter may return fewer tokens than asked, or none.
    Ids outside the target's vocabulary are refused by the loop, which then goes on with an empty draft.
    """

    name = "drafter"

    @abstractmethod
    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Up to `limit` tokens that may follow `tokens`, the committed text of sequence `seq`, prompt included."""

    def observe(  # noqa: B027 - most have nothing to learn
        self, seq: int, tokens: Sequence[int], drafted: int, accepted: int
    ) -> None:
        """Hear what a round brought: `tokens` were emitted; of `drafted` verified tokens, `accepted` were taken."""


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
