"""Drafters that run in Python: prompt lookup, and llama-cpp-python's draft models.

GGUF draft models run in the engine, in lock-step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel

from pyspec.lookup.memory import Continuation, Memory, TextIndex


class Proposal(msgspec.Struct, frozen=True):
    """Drafted tokens, and what they were taken from.

    Attributes:
        tokens: Ids, the next token first; may be empty.
        match_length: Length of the earlier match that they continue, in tokens; 0 if there is none.
        choices: How many different tokens have followed that match so far.
    """

    tokens: Sequence[int]
    match_length: int = 0
    choices: int = 1


NOTHING = Proposal(())


class Drafter(ABC):
    """Proposes tokens that may follow a sequence.

    One drafter serves several sequences, which `seq` tells apart. A drafter may return fewer tokens than asked for, or none. If
    it returns ids outside the target's vocabulary, the loop drops the draft and continues without one.
    """

    name = "drafter"

    @abstractmethod
    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Draft for one sequence.

        Args:
            seq: Number of the sequence.
            tokens: Its committed token ids, prompt included. Do not change them.
            limit: Most tokens that are of use.

        Returns:
            Up to `limit` tokens that may follow.
        """

    def begin(self, seq: int, owner: str = "") -> None:  # noqa: B027 - as below
        """Note that another text takes this sequence number.

        Args:
            seq: Number of the sequence.
            owner: Whose text it is; "" if it has no named owner.
        """

    def move(self, seq: int, to: int) -> None:  # noqa: B027 - as below
        """Note that a text goes on under another sequence number.

        Args:
            seq: Its number so far.
            to: Its new number, whose own text is over.
        """

    def expect(self, seq: int, tokens: Sequence[int]) -> None:  # noqa: B027 - as below
        """Take a prediction of a sequence's text, to draft from. Called after `begin`.

        Args:
            seq: Number of the sequence.
            tokens: Ids of the prompt's last tokens and of the predicted text.
        """

    def end(self, seq: int, tokens: Sequence[int]) -> None:  # noqa: B027 - as below
        """Note that the text of a sequence is over, whether anything was proposed for it or not.

        Args:
            seq: Number of the sequence.
            tokens: Ids of the whole text.
        """

    def observe(  # noqa: B027 - most have nothing to learn
        self, seq: int, tokens: Sequence[int], drafted: int, accepted: int
    ) -> None:
        """Learn from a round.

        Args:
            seq: Number of the sequence.
            tokens: Ids that were emitted.
            drafted: Drafted tokens that the target verified.
            accepted: How many of them were accepted.
        """


class ForeignDrafter(Drafter):
    """Asks a llama-cpp-python draft model, one sequence at a time."""

    def __init__(self, model: LlamaDraftModel) -> None:
        self._model = model
        self.name = type(model).__name__

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """The first `limit` tokens that the model returns."""
        proposed = self._model(np.asarray(tokens, dtype=np.intc))
        return Proposal([int(token) for token in proposed[:limit]])


# -- prompt lookup -----------------------------------------------------------------------------------------------------


class _GrowingText:
    """A text as it grows, and its place in its owner's index."""

    def __init__(self, index: TextIndex) -> None:
        self.index = index
        self.text: Sequence[int] = ()
        """Its first `size` tokens are known. This is the caller's own object, not a copy."""
        self.size, self._place = 0, TextIndex.EMPTY

    def continues(self, text: Sequence[int]) -> bool:
        """Whether a text continues what is known; the same object can only have grown."""
        n = self.size
        return n <= len(text) and (text is self.text or list(text[:n]) == list(self.text[:n]))

    def follow(self, text: Sequence[int]) -> None:
        """Add the new tokens of a text that continues."""
        self.text = text
        if self.size < len(text):
            self._place = self.index.add(self._place, text[self.size :])
            self.size = len(text)

    def next(self, limit: int) -> Continuation:
        """What may follow it."""
        return self.index.next(self._place, len(self.text), limit)


class LookupDrafter(Drafter):
    """Drafts what followed the longest earlier occurrence of the text's end, in the text itself and in its owner's `memory`."""

    name = "lookup"

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory
        self._texts: dict[int, _GrowingText] = {}
        self._owners: dict[int, str] = {}

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """What most often followed the longest earlier occurrence, at most `limit` tokens."""
        return Proposal(*self._followed(seq, tokens).next(limit))

    def _followed(self, seq: int, tokens: Sequence[int]) -> _GrowingText:
        """The sequence's text, up to these tokens; another one if they do not continue it."""
        text = self._texts.get(seq)
        if text is None or not text.continues(tokens):
            text = self._begin(seq)
        text.follow(tokens)
        return text

    def _begin(self, seq: int) -> _GrowingText:
        self._end(seq)
        memory = self.memory
        index = TextIndex() if memory is None else memory.texts_of(self._owners.get(seq, ""))
        self._texts[seq] = text = _GrowingText(index)
        return text

    def _end(self, seq: int) -> None:
        text = self._texts.pop(seq, None)
        if text is not None and self.memory is not None:
            text.follow(text.text)  # the last round's tokens
            self.memory.count(self._owners.get(seq, ""))

    def begin(self, seq: int, owner: str = "") -> None:
        """Note that another text, of this owner, takes this sequence number."""
        self._end(seq)
        self._owners[seq] = owner

    def move(self, seq: int, to: int) -> None:
        """The text goes on under another number."""
        self._end(to)
        if seq in self._texts:
            self._texts[to] = self._texts.pop(seq)
        self._owners[to] = self._owners.pop(seq, "")

    def expect(self, seq: int, tokens: Sequence[int]) -> None:
        """What is predicted is one more of the owner's texts."""
        self._begin(seq).index.add(TextIndex.EMPTY, tokens)

    def end(self, seq: int, tokens: Sequence[int]) -> None:
        """Remember the text for its owner's next ones, even if nothing was drafted for it."""
        if self.memory is not None:
            self._followed(seq, tokens)
            self._end(seq)
