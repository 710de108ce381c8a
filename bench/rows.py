"""A draft's rows at every place of a known text: after each token, and after each token that it drafts itself.

A head's rows depend on how many tokens it drafted, since it continues with its own states. The engine cannot force a draft's
tokens, so this module searches for noise with which the draft draws the text's own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from measure.draws import noise_of
from measure.questions import load_questions

from pyspec import SpeculativeLlama
from pyspec.policy.simple import LengthPolicy
from pyspec.policy.types import Draft, Place, Plan
from pyspec.sampling.chain import Sampling
from pyspec.sampling.noise import Coupling
from pyspec.text.template import ChatTemplate
from pyspec.text.tokens import Step, common_prefix

Row = npt.NDArray[np.float32]

LEAST = 0.02
"""Least ratio of the text's token to the likeliest one, in probability, for the draft to continue after it."""
SEEDS = 4000
"""How many seeds are tried to find noise that draws the text."""


class Behind(NamedTuple):
    """A place of a text. drafted: what the engine drafted there; rows: one for each token that the draft can propose.

    unknown: whether the search for noise failed, so later rows are missing.
    """

    drafted: list[int]
    rows: list[Row]
    unknown: bool


class Text(NamedTuple):
    """A prompt and its answer; places: where a draft may begin, by the text's length there."""

    tokens: list[int]
    places: Mapping[int, Behind]


class Recorder(LengthPolicy):
    """Drafts before each round of a known text, and keeps the rows; nothing is verified."""

    def __init__(self, llm: SpeculativeLlama, text: Sequence[int], how: Sampling, k: int) -> None:
        super().__init__()
        self._engine, self._text, self._how, self._k = llm.assembly.engine, text, how, k
        self._context, self._n_vocab = llm.assembly.models[0].context, llm.n_vocab()
        self._at, self.rereads = 0, False
        self.places: dict[int, Behind] = {}

    def plan(self, places: Sequence[Place]) -> Plan:
        """Plan one token; `choose` drafts more."""
        (place,) = places
        self._at, self.rereads = place.depth, place.rereads
        return Plan([min(1, place.room)])

    def choose(self, drafts: Sequence[Draft]) -> list[int]:
        """Draft as the engine does, then along the text; verify nothing. For a model the first row is enough: see `chained`."""
        wanted = list(self._text[self._at : self._at + (self._k if self.rereads else 1)])
        if wanted and (drafted := self._draft(self._how.coupling, (), len(wanted))):
            self.places[self._at] = Behind(drafted, *self._along(wanted))
            self._engine.couple(0, self._how.coupling)
        return [0]

    def _draft(self, coupling: Coupling | None, begin: Sequence[int], n: int) -> list[int]:
        """Draft up to n tokens; they start with `begin` if the draft accepts it."""
        self._engine.couple(0, coupling)
        self._engine.put_draft(0, begin)
        self._engine.draft([0], [n])
        view = self._engine.drafted(0)
        return list(view.token[0 : view.n])

    def _along(self, wanted: Sequence[int]) -> tuple[list[Row], bool]:
        """Rows after the text's tokens, as far as the draft can draw them, and whether the search for another one failed."""
        rows: list[Row] = []
        for i, token in enumerate(wanted):
            if not self._lead(wanted[:i], rows):
                return rows, True
            rows.append(self._last_row().copy())
            if not _likely(rows[-1], token):
                break
        return rows, False

    def _lead(self, begin: list[int], rows: Sequence[Row]) -> bool:
        """Try to make the draft's last row the one after `begin`; return whether it is."""
        n = len(begin)
        tried = (self._draft(coupling, begin, n + 1) for coupling in self._couplings(begin, rows))
        return any(len(found) > n and found[:n] == begin for found in tried)

    def _couplings(self, begin: Sequence[int], rows: Sequence[Row]) -> Iterator[Coupling | None]:
        """The text's own noise, then one that draws `begin` of these rows."""
        yield self._how.coupling
        how, pairs = self._how, list(zip(rows, begin, strict=True))
        shares = [float(row[token] - row.max()) for row, token in pairs]
        min_p = exp(min(shares, default=0.0)) * (
            1.0 - 1e-4
        )  # the last token that it leaves is the text's
        left = [np.flatnonzero(row >= row.max() + log(min_p)).astype(np.int32) for row in rows]
        scores = [row[ids] / how.temperature for row, ids in zip(rows, left, strict=True)]
        for seed in range(SEEDS):
            drawn = (
                ids[np.argmax(score + noise_of(seed, self._at + i, ids))]
                for i, (ids, score) in enumerate(zip(left, scores, strict=True))
            )
            if all(token == one for token, one in zip(begin, drawn, strict=False)):
                yield Coupling(seed, how.temperature, min_p)
                return

    def _last_row(self) -> Row:
        """The draft's logits after the token that it read last, [n_vocab]."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, (self._n_vocab,))


R = TypeVar("R", bound=Recorder)


def record(
    llm: SpeculativeLlama, prompt: Sequence[int], how: Sampling, tokens: int, length: int, kind: Callable[..., R]
) -> tuple[Text, R]:  # fmt: skip
    """Generate a text plainly, then once more with up to `length` rows of the draft at each place. kind: of recorder."""
    most: dict[str, Any] = {"max_tokens": tokens}
    text = [*prompt, *said(llm.steps(prompt, how, drafting="nothing", **most))]
    recorder = kind(llm, text, how, length)
    again = [*prompt, *said(llm.steps(prompt, how, drafting="model", policy=recorder, **most))]
    end = common_prefix(text, again)
    places = {at: one for at, one in recorder.places.items() if at < end}
    if not recorder.rereads:
        places = {at: chained(text, places, at, length) for at in places}
    return Text(text[:end], places), recorder


def chained(text: Sequence[int], places: Mapping[int, Behind], at: int, length: int) -> Behind:
    """A model's place with the rows of the places after it: a model's row depends only on the text, whoever wrote it."""
    there = [places[i] for i in range(at, at + length) if i in places]
    drafted = [token for one in there for token in one.drafted]
    rows = [row for one in there for row in one.rows]
    right = common_prefix(drafted, text[at:])
    likely = [_likely(row, token) for row, token in zip(rows, text[at:], strict=False)]
    end = common_prefix(likely, [True] * length)
    return Behind(drafted[: right + 1], rows[: end + 1], False)


def _likely(row: Row, token: int) -> bool:
    return bool(row[token] >= row.max() + log(LEAST))


def said(steps: Iterable[Step]) -> list[int]:
    """An answer's tokens."""
    return [token.id for step in steps for token in step.tokens]


def open_pair(target: str, draft: str, threads: int) -> SpeculativeLlama:
    """A target with a draft and no companion."""
    return SpeculativeLlama(
        target, draft=draft, companion="none", n_ctx=2048, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip


def prompts_of(llm: SpeculativeLlama, options: Any) -> list[list[int]]:
    """Prompts from the questions of a command line, if there is room for their answers."""
    asked = load_questions(Path(options.questions))[:: options.every]
    template = ChatTemplate.of(llm)
    prompts = [question.prompt(template) for question in asked]
    return [ids for ids in prompts if len(ids) + options.tokens < llm.n_ctx()]
