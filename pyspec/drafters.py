"""Drafters that live in Python: prompt lookup, llama-cpp-python's draft models, and models of another vocabulary.

Draft models of the target's own vocabulary live in the engine, where they are drafted in lock-step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import msgspec
import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel

from pyspec.memory import Continuation, Memory, OwnTexts, TextIndex
from pyspec.offload import PlacedModel, count_placeable
from pyspec.target import TargetLlama
from pyspec.text.tokenizer import Alphabet, piece_reader
from pyspec.tokens import common_prefix


class Proposal(msgspec.Struct, frozen=True):
    """Drafted tokens, and what they were taken from.

    match_length: of the text that they continue, 0 where there is no such thing; choices: how many different tokens have
    followed it so far. p: of a model that drafted them, its probability of each.
    """

    tokens: Sequence[int]
    match_length: int = 0
    choices: int = 1
    p: Sequence[float] = ()


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

    def begin(self, seq: int, owner: str = "") -> None:  # noqa: B027 - as below
        """Hear that sequence `seq` has another text from now on, and whose it is."""

    def observe(  # noqa: B027 - most have nothing to learn
        self, seq: int, tokens: Sequence[int], drafted: int, accepted: int
    ) -> None:
        """Hear what a round brought: `tokens` were emitted; of `drafted` verified tokens, `accepted` were taken."""


class ForeignDrafter(Drafter):
    """Asks a llama-cpp-python draft model, one text at a time."""

    def __init__(self, model: LlamaDraftModel) -> None:
        self._model = model
        self.name = type(model).__name__

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Up to `limit` tokens, as the model gives them."""
        proposed = self._model(np.asarray(tokens, dtype=np.intc))
        return Proposal([int(token) for token in proposed[:limit]])


# -- prompt lookup -----------------------------------------------------------------------------------------------------


class _Followed:
    """A text as it grows, and its place among its owner's."""

    def __init__(self, own: OwnTexts) -> None:
        self.own, self._turn = own, own.turn
        self.text: Sequence[int] = ()
        """Whose first `size` tokens are known: the caller's own object, not a copy."""
        self.size, self._place = 0, TextIndex.EMPTY

    def continues(self, text: Sequence[int]) -> bool:
        """Whether a text goes on from what is known; one that is still the same object has only grown."""
        n = self.size
        return n <= len(text) and (text is self.text or list(text[:n]) == list(self.text[:n]))

    def follow(self, text: Sequence[int]) -> None:
        """Add what is new of a text that goes on."""
        if self._turn != self.own.turn:
            self._turn, self.size, self._place = self.own.turn, 0, TextIndex.EMPTY
        self.text = text
        if self.size < len(text):
            self._place = self.own.add(self._place, text[self.size :])
            self.size = len(text)

    def next(self, limit: int) -> Continuation:
        """What may follow it."""
        return self.own.next(self._place, self.text, limit)

    def end(self) -> None:
        """It is over: take what the last round brought."""
        self.follow(self.text)
        self.own.flush()


class LookupDrafter(Drafter):
    """Drafts what followed the longest earlier occurrence of the text's end, here and in what `memory` has of its owner."""

    name = "lookup"

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory
        self._texts: dict[int, _Followed] = {}
        self._owners: dict[int, str] = {}

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """What followed the longest earlier occurrence most often, at most `limit` tokens."""
        text = self._texts.get(seq)
        if text is None or not text.continues(tokens):
            text = self._begin(seq)
        text.follow(tokens)
        return Proposal(*text.next(limit))

    def _begin(self, seq: int) -> _Followed:
        self._end(seq)
        memory = self.memory
        own = OwnTexts() if memory is None else memory.texts_of(self._owners.get(seq, ""))
        self._texts[seq] = text = _Followed(own)
        return text

    def _end(self, seq: int) -> None:
        text = self._texts.pop(seq, None)
        if text is not None and self.memory is not None:
            text.end()

    def begin(self, seq: int, owner: str = "") -> None:
        """The sequence has another text from now on, which is this owner's."""
        self._end(seq)
        self._owners[seq] = owner

    def close(self) -> None:
        """Keep what is to be kept; the drafter then knows no text."""
        for seq in list(self._texts):
            self._end(seq)
        if self.memory is not None:
            self.memory.close()


# -- models of another vocabulary --------------------------------------------------------------------------------------


Tokenize = Callable[[bytes], list[int]]
Piece = Callable[[int], bytes]

LEAST = 0.3
"""Drafting stops where the product of the draft's probabilities falls below this."""

_TAIL = 8
"""Tokens at the end of the text that are tokenised again as it grows: new letters may join the last of them."""

_CONTEXT = 2
"""Committed tokens in front of a draft with which it is tokenised, so that words are cut as the target cuts them."""


@dataclass
class DraftedText:
    """What the draft said: bytes and probability of each of its tokens."""

    pieces: list[bytes]
    p: list[float]

    @property
    def text(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


class TranslatedDrafter(Drafter):
    """Drafts for `target` with the model of a file that has another vocabulary (exact matching of strings, arXiv 2502.05202).

    The committed text is tokenised for the draft, the draft goes on greedily, and what it says is tokenised for the target,
    which verifies ids of its own as always: strict text stays its own, however badly a translation went.
    target: the `llama_cpp.Llama` that verifies. n_ctx: tokens that a text may have. options: for the draft's own
    `llama_cpp.Llama`. It holds one text: another one is read from where the two part. Raises ModelError where the file cannot
    be loaded.
    """

    def __init__(self, path: Path, target: Any, n_ctx: int, **options: Any) -> None:
        self.path = path
        self.reads_states = False
        self.size = path.stat().st_size
        self.name = f"{path.stem} (translated)"
        self._llm = TargetLlama(str(path), n_ctx=n_ctx, verbose=False, **options)
        self._piece = piece_reader(self._llm._model.vocab)
        self._target_piece = piece_reader(target._model.vocab)
        self._tokenize = _tokenizer(target)
        self._own = _tokenizer(self._llm)
        self._start = [self._llm.token_bos()] if self._llm._model.add_bos_token() else []
        self._seen: list[int] = []
        self._ids: list[int] = list(self._start)

    @property
    def placed(self) -> PlacedModel:
        """Where its layers were to go."""
        asked = int(self._llm.model_params.n_gpu_layers)
        return PlacedModel(self.path.stem, asked, count_placeable(self._llm.model))

    def close(self) -> None:
        """Free the draft's model."""
        self._llm.close()

    def lag(self, tokens: Sequence[int]) -> int:
        """About how many tokens the draft has to read before it can go on from `tokens`."""
        return len(tokens) - common_prefix(self._seen, tokens)

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Up to `limit` tokens, with the draft's probability of each."""
        self._follow(tokens)
        if len(self._ids) + limit >= self._llm.n_ctx() or not self._ids:
            return NOTHING
        said = self._say(limit)
        if not said.pieces:
            return NOTHING
        context = list(tokens[-_CONTEXT:])
        ids = translate(said.text, context, self._target_piece, self._tokenize)[:limit]
        sizes = [len(self._target_piece(token)) for token in ids]
        return Proposal(ids, p=spread(said, sizes))

    def _follow(self, tokens: Sequence[int]) -> None:
        """Bring `_ids` up to date with the text of `tokens`."""
        same = common_prefix(self._seen, tokens)
        if same < len(self._seen):
            self._seen, self._ids, same = [], list(self._start), 0
        new = b"".join(map(self._target_piece, tokens[same:]))
        self._seen.extend(tokens[same:])
        cut = max(len(self._start), len(self._ids) - _TAIL)
        tail = b"".join(map(self._piece, self._ids[cut:])) + new
        self._ids[cut:] = _without_space(self._own(tail), tail, self._piece)

    def _say(self, limit: int) -> DraftedText:
        """What the draft says next: greedy tokens while it is sure, at most `limit`."""
        llm, said, sure = self._llm, DraftedText([], []), 1.0
        held = llm.input_ids[: llm.n_tokens].tolist()
        llm.n_tokens = min(common_prefix(held, self._ids), len(self._ids) - 1)
        llm.eval(self._ids[llm.n_tokens :])
        while len(said.pieces) < limit:
            token, p = self._best()
            piece = self._piece(token)
            sure *= p
            if not piece or sure < LEAST:  # a control token ends a turn; the target has its own
                break
            said.pieces.append(piece)
            said.p.append(p)
            if len(said.pieces) < limit:
                llm.eval([token])
        return said

    def _best(self) -> tuple[int, float]:
        """The likeliest token, and its probability."""
        row = llama_cpp.llama_get_logits_ith(self._llm._ctx.ctx, -1)
        logits = np.ctypeslib.as_array(row, shape=(self._llm.n_vocab(),)).astype(np.float32)
        token = int(logits.argmax())
        return token, 1.0 / float(np.exp(logits - logits[token]).sum())


def _tokenizer(llm: Any) -> Tokenize:
    """What tokenises text for a model; characters that its vocabulary cannot spell are left out of it."""
    alphabet = Alphabet.of(llm._model.vocab)

    def tokenize(text: bytes) -> list[int]:
        if alphabet is not None:
            text = "".join(filter(alphabet.spells, text.decode("utf-8", "ignore"))).encode()
        ids: list[int] = llm.tokenize(text, add_bos=False, special=False)
        return ids

    return tokenize


def translate(text: bytes, context: Sequence[int], piece: Piece, tokenize: Tokenize) -> list[int]:
    """`text` in a vocabulary's tokens, as they would follow the tokens of `context`.

    Tokens must say the text and nothing else: where the vocabulary cannot say it, as many as do.
    """
    before = b"".join(map(piece, context))
    joined = _without_space(tokenize(before + text), before + text, piece)
    size = 0
    for n, token in enumerate(joined):
        if size == len(before):
            return _saying(joined[n:], text, piece)
        size += len(piece(token))
    return _saying(_without_space(tokenize(text), text, piece), text, piece)


def _without_space(ids: list[int], text: bytes, piece: Piece) -> list[int]:
    """Without the space that some tokenisers put in front of every text."""
    if ids and piece(ids[0]).startswith(b" ") and not text.startswith(b" "):
        rest = piece(ids[0])[1:]
        return ids[1:] if not rest else ids
    return ids


def _saying(ids: list[int], text: bytes, piece: Piece) -> list[int]:
    """The tokens at the front that say `text`."""
    at = 0
    for n, token in enumerate(ids):
        said = piece(token)
        if not said or text[at : at + len(said)] != said:
            return ids[:n]
        at += len(said)
    return ids


def spread(said: DraftedText, sizes: Sequence[int]) -> list[float]:
    """Probability of the target's tokens, `sizes` bytes each, from those of the draft's.

    Each of the draft's tokens counts for the one in which it begins; a token in which none begins is sure.
    """
    p = [1.0] * len(sizes)
    starts, at = [], 0
    for piece in said.pieces:
        starts.append(at)
        at += len(piece)
    k, end = 0, 0
    for n, size in enumerate(sizes):
        end += size
        while k < len(starts) and starts[k] < end:
            p[n] *= said.p[k]
            k += 1
    return p
