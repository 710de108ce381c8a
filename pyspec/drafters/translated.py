"""A draft model of another vocabulary: its tokens go through text (exact matching of strings, arXiv 2502.05202).

The committed text is tokenised for the draft, the draft goes on greedily, and what it says is tokenised for the target. The
target verifies ids of its own as always, so strict text stays its own, however badly a translation went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from pyspec.drafters.base import Drafter, Proposal
from pyspec.target import TargetLlama
from pyspec.text import piece_reader
from pyspec.tokens import common_prefix

Tokenize = Callable[[bytes], list[int]]
Piece = Callable[[int], bytes]

LEAST = 0.3
"""Drafting stops where the product of the draft's probabilities falls below this."""

_TAIL = 8
"""Tokens at the end of the text that are tokenised again as it grows: new letters may join the last of them."""

_CONTEXT = 2
"""Committed tokens in front of a draft with which it is tokenised, so that words are cut as the target cuts them."""


@dataclass
class Said:
    """What the draft said: bytes and probability of each of its tokens, and the entropy of each choice in nats."""

    pieces: list[bytes]
    p: list[float]
    entropy: list[float]

    @property
    def text(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


class TranslatedDrafter(Drafter):
    """Drafts for `target` with the model of a GGUF file that has another vocabulary.

    target: the `llama_cpp.Llama` that verifies. options: for the draft's own `llama_cpp.Llama`. One text at a time. Raises
    ModelError where the file cannot be loaded.
    """

    def __init__(self, path: Path, target: Any, **options: Any) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.name = f"{path.stem} (translated)"
        self._llm = TargetLlama(str(path), n_ctx=target.n_ctx(), verbose=False, **options)
        self._piece = piece_reader(self._llm._model.vocab)
        self._target_piece = piece_reader(target._model.vocab)
        self._tokenize = _tokenizer(target, self._target_piece)
        self._own = _tokenizer(self._llm, self._piece)
        self._start = [self._llm.token_bos()] if self._llm._model.add_bos_token() else []
        self._seen: list[int] = []
        self._ids: list[int] = list(self._start)

    def close(self) -> None:
        """Free the draft's model."""
        self._llm.close()

    def lag(self, tokens: Sequence[int]) -> int:
        """About how many tokens the draft has to read before it can go on from `tokens`."""
        return max(0, len(tokens) - len(self._seen))

    def propose(self, seq: int, tokens: Sequence[int], limit: int) -> Proposal:
        """Up to `limit` tokens, with the draft's probability of each."""
        self._follow(tokens)
        if len(self._ids) + limit >= self._llm.n_ctx() or not self._ids:
            return Proposal(())
        said = self._say(limit)
        if not said.pieces:
            return Proposal(())
        context = list(tokens[-_CONTEXT:])
        ids = translate(said.text, context, self._target_piece, self._tokenize)[:limit]
        sizes = [len(self._target_piece(token)) for token in ids]
        p, entropy = spread(said, sizes)
        return Proposal(ids, p=p, entropy=entropy)

    # -- the committed text in the draft's tokens -------------------------------------------------------------------

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

    # -- drafting ---------------------------------------------------------------------------------------------------

    def _say(self, limit: int) -> Said:
        """What the draft says next: greedy tokens while it is sure, at most `limit`."""
        llm, said, sure = self._llm, Said([], [], []), 1.0
        held = llm.input_ids[: llm.n_tokens].tolist()
        llm.n_tokens = min(common_prefix(held, self._ids), len(self._ids) - 1)
        llm.eval(self._ids[llm.n_tokens :])
        while len(said.pieces) < limit:
            token, p, entropy = self._best()
            piece = self._piece(token)
            sure *= p
            if not piece or sure < LEAST:  # a control token ends a turn; the target has its own
                break
            said.pieces.append(piece)
            said.p.append(p)
            said.entropy.append(entropy)
            if len(said.pieces) < limit:
                llm.eval([token])
        return said

    def _best(self) -> tuple[int, float, float]:
        """The likeliest token, its probability, and the entropy of the choice."""
        row = llama_cpp.llama_get_logits_ith(self._llm._ctx.ctx, -1)
        logits = np.ctypeslib.as_array(row, shape=(self._llm.n_vocab(),)).astype(np.float32)
        token = int(logits.argmax())
        shifted = logits - logits[token]
        weights = np.exp(shifted)
        total = float(weights.sum())
        return token, 1.0 / total, float(np.log(total) - (weights * shifted).sum() / total)


def _tokenizer(llm: Any, piece: Piece) -> Tokenize:
    """What tokenises text for a model; characters that its vocabulary cannot say are left out of it.

    A vocabulary of SentencePiece's kind without byte tokens ends the process in llama.cpp where it meets one.
    """
    known = _characters(llm, piece)

    def tokenize(text: bytes) -> list[int]:
        if known is not None:
            text = "".join(c for c in text.decode("utf-8", "ignore") if c in known).encode()
        ids: list[int] = llm.tokenize(text, add_bos=False, special=False)
        return ids

    return tokenize


def _characters(llm: Any, piece: Piece) -> frozenset[str] | None:
    """The characters that are tokens, for a vocabulary that can say no others; None for one that can say all."""
    vocab = llm._model.vocab
    if llama_cpp.llama_vocab_type(vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
        return None
    tokens = range(llm.n_vocab())
    if any(
        llama_cpp.llama_vocab_get_attr(vocab, t) & llama_cpp.LLAMA_TOKEN_ATTR_BYTE for t in tokens
    ):
        return None
    return frozenset(text for t in tokens if len(text := piece(t).decode("utf-8", "ignore")) == 1)


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


def spread(said: Said, sizes: Sequence[int]) -> tuple[list[float], list[float]]:
    """Probability and entropy of the target's tokens, `sizes` bytes each, from those of the draft's.

    Each of the draft's tokens counts for the one in which it begins; a token in which none begins is sure.
    """
    p, entropy = [1.0] * len(sizes), [0.0] * len(sizes)
    starts, at = [], 0
    for piece in said.pieces:
        starts.append(at)
        at += len(piece)
    k, end = 0, 0
    for n, size in enumerate(sizes):
        end += size
        while k < len(starts) and starts[k] < end:
            p[n] *= said.p[k]
            entropy[n] += said.entropy[k]
            k += 1
    return p, entropy
