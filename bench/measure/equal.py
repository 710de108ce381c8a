"""Compares answers that must be equal: where they differ first, and whether rounding alone explains it.

A strict mode gives the same tokens as plain decoding; above temperature 0, both use one seed's coupled noise. But llama.cpp's
kernels round differently for one row and for several (logits of a Q4_1 file move by 0.1 nats and more), so where the target's two
best tokens are close the answers may differ, and everything after differs too. No threshold in nats separates such a place from a
fault: in long contexts logits moved by nearly 2 nats. So both answers are decoded again, with as many rows in each decode as in
their rounds, and another token in place of each refused one. If rounding was the cause, both choices come out again; if refused
drafts left something behind, they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from math import isinf

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.chain import build_chain
from pyspec.sampling.options import Sampling
from pyspec.text.parts import common_prefix
from pyspec.text.template import ChatTemplate

from .logits import TopTwo, replay, row_after, settled, top_two
from .questions import Question
from .records import Difference, RunRecord, TimedAnswer
from .tasks import Options, UnequalOutputs

PromptAnswer = tuple[Sequence[int], TimedAnswer]
"""A turn's prompt and answer."""


def first_differences(records: Sequence[RunRecord]) -> list[Difference]:
    """The first difference of each exact answer from plain decoding's in the same run.

    A shorter answer differs at its end. Turns after a difference have another prompt and are skipped.
    """
    plain = plain_answers(records)
    out = []
    for record in records:
        base = plain.get((record.question_id, record.repeat))
        if not record.exact or base is None or record is base or record.error:
            continue
        for number, (one, two) in enumerate(zip(base.turns, record.turns, strict=False)):
            place = common_prefix(one.tokens, two.tokens)
            if place < max(len(one.tokens), len(two.tokens)):
                a, b = (next(iter(t.tokens[place:]), None) for t in (one, two))
                where = record.question_id, number, place
                out.append(Difference(record.who, *where, a, b, repeat=record.repeat))
                break
    return out


def demand_equal(found: Sequence[Difference], peers: set[str]) -> None:
    """Raise UnequalOutputs for the first difference of a pyspec mode that rounding does not reproduce.

    Peers are other programs whose rounds are unknown: their differences are only reported.
    """
    for difference in found:
        if difference.who not in peers and not difference.rounding:
            hint = "the same rows in each decode do not make these choices again: this is a fault in pyspec"
            raise UnequalOutputs(str(difference), hint)


def equality(
    llm: SpeculativeLlama, records: Sequence[RunRecord], questions: Sequence[Question]
) -> list[Difference]:
    """First differences from plain decoding, each with the target's gap there and whether rounding reproduces it."""
    asked = {question.question_id: question for question in questions}
    how = Options(temperature=records[-1].setup.temperature, seed=records[-1].setup.seed)
    plain, template = plain_answers(records), ChatTemplate.of(llm)
    by_key = {record.key: record for record in records}

    def turns(record: RunRecord) -> list[PromptAnswer]:
        question = asked[record.question_id]
        before = [turn.tokens for turn in record.turns]
        return [(question.prompt(template, before[:i]), t) for i, t in enumerate(record.turns)]

    found = []
    for one in first_differences(records):
        base = turns(plain[one.question_id, one.repeat])
        own = turns(by_key[one.who, one.question_id, one.repeat])
        prompt, answer = base[one.turn]
        sampling = how.sampling(prompt)
        text = [*prompt, *answer.tokens[: one.place]]
        row = row_after(llm, text)
        with judge(llm, sampling) as best:
            ahead = best(row, len(text)).gap(sampling.temperature)
        again = [
            choices(llm, side[: one.turn + 1], sampling)[one.place :][:1] for side in (base, own)
        ]
        rounding = again == [[one.plain], [one.other]] if all(again) else None
        gap = "alone" if isinf(ahead) else ahead  # JSON has no infinity
        found.append(msgspec.structs.replace(one, gap=gap, rounding=rounding))
    return found


@contextmanager
def judge(
    llm: SpeculativeLlama, sampling: Sampling
) -> Iterator[Callable[[npt.NDArray[np.float32], int], TopTwo]]:
    """Yields a function of a row of logits and its token's position, which returns the two best under this sampling."""
    chain = build_chain(sampling, llm)
    with nullcontext() if chain is None else closing(chain):
        yield lambda row, at: top_two(row, chain, sampling.coupling, at)


_GREEDY = Sampling(temperature=0.0)


def choices(
    llm: SpeculativeLlama, turns: Sequence[PromptAnswer], sampling: Sampling = _GREEDY
) -> list[int]:
    """The target's choices in the last turn, decoded with as many rows each time as in the answers' rounds.

    turns: all from the first. Empty if the last answer's rounds were not recorded.
    """
    engine = settled(llm)
    engine.set_tokens(0, [])
    found: list[int] = []
    for prompt, answer in turns:
        rows = replay(engine, prompt, answer.tokens, answer.rounds)
        with judge(llm, sampling) as best:
            found = [best(row, at).first for at, row in enumerate(rows, len(prompt))]
    return found


def plain_answers(records: Sequence[RunRecord]) -> dict[tuple[int | str, int], RunRecord]:
    """Plain decoding's answers, by question and repeat."""
    plain = [r for r in records if r.who == "plain" and not r.error and r.turns]
    return {(r.question_id, r.repeat): r for r in plain}
