"""Answers that must be equal are: else nothing is compared.

At temperature 0 a strict mode gives the tokens that plain decoding gives. llama.cpp's kernels do
not round alike for one row and for several (a Q4_1 file's logits move by 0.1 nats and more), so
where the target's two best tokens are nearer than that the answers may part, and then go apart;
any other difference is a fault. How near is measured: `tie_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from pyspec.engine.handle import MAX_DRAFT
from pyspec.errors import UnequalOutputs
from pyspec.llama import SpeculativeLlama
from pyspec.measure.costs import ready
from pyspec.measure.questions import Question
from pyspec.measure.records import RunRecord
from pyspec.text import ChatTemplate, Message
from pyspec.tokens import common_prefix

TIE = 0.05
"""Nats between the two best tokens below which rounding may decide, at the least."""

_WIDTHS = (2, 8)
_TEXTS, _TOKENS = 3, 96  # answers that the bound is measured on, and of each so many tokens at most
_ROOM = 2.0  # times the greatest move seen: moves have heavy tails


class Difference(msgspec.Struct):
    """Where an answer first parts from plain decoding's.

    gap: nats between the target's two best tokens there, or None where that was not measured.
    """

    who: str
    question_id: int | str
    turn: int
    place: int
    plain: int | None
    other: int | None
    gap: float | None = None
    repeat: int = 0

    def __str__(self) -> str:
        gap = "" if self.gap is None else f"; the target's two best are {self.gap:.3f} nats apart"
        return (
            f"{self.who} differs from plain at question {self.question_id}, turn {self.turn + 1}, "
            f"token {self.place + 1}: {self.other}, not {self.plain}{gap}"
        )


def differences(records: Sequence[RunRecord]) -> list[Difference]:
    """The first difference of each exact answer from plain decoding's of the same run.

    A shorter answer is a difference at its end. Later turns after a difference have another
    prompt and are not looked at.
    """
    plain = _plain(records)
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


def demand_equal(found: Sequence[Difference], peers: set[str], tie: float = TIE) -> None:
    """Raise UnequalOutputs for the first difference of pyspec's own that is no near-tie.

    Peers are other programs, with kernels of their own: theirs are reported, not refused.
    """
    for difference in found:
        if difference.who not in peers and (difference.gap is None or difference.gap > tie):
            hint = f"near-ties up to {tie:.2f} nats are allowed; this is a fault in pyspec"
            raise UnequalOutputs(str(difference), hint)


def rows_after(
    llm: SpeculativeLlama, prompt: Sequence[int], answer: Sequence[int], width: int = MAX_DRAFT
) -> Iterator[npt.NDArray[np.float32]]:
    """The target's logits [n_vocab] for each token of `answer`, given everything before it.

    By teacher forcing through the very engine, up to `width` tokens a decode, 64 at most.
    """
    session = llm.assembly.session
    engine, text, done = session.engine, list(prompt), 0
    engine.cancel(raised=False)
    llm.reset()  # the KV is no longer what it was; what is common to two calls is not read twice
    while done < len(answer):
        ready(engine, text, len(text))
        part = list(answer[done : done + min(width, MAX_DRAFT, session.loop.longest + 1)])
        # the last token's row is the one before it: nothing follows that had to be decoded
        drafted = part[:-1] if len(part) > 1 else []
        engine.put_draft(0, drafted)
        engine.verify([(0, 0, len(drafted))])
        for i in range(len(part)):
            yield engine.row(0, i)
        text += part
        done += len(part)


def tie_bound(
    llm: SpeculativeLlama, answers: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> float:
    """Nats within which the two best tokens may change places by rounding alone.

    Twice the greatest move of z1 - z2 between decodes of one row and of 2 or 8, over the tokens of a few answers; at least
    `TIE`. Each answer is decoded as a whole in either way: what the KV holds was rounded otherwise too, and that adds up.

    answers: (prompt, answer) each.
    """
    most = 0.0
    for prompt, answer in answers:
        part = answer[:_TOKENS]
        alone = [row.copy() for row in rows_after(llm, prompt, part, 1)]
        for width in _WIDTHS:
            for one, row in zip(alone, rows_after(llm, prompt, part, width), strict=True):
                second, first = np.argpartition(one, len(one) - 2)[-2:]
                move = (one[first] - one[second]) - (row[first] - row[second])
                most = max(most, abs(float(move)))
    return max(TIE, _ROOM * most)


def top_gap(row: npt.NDArray[np.float32]) -> float:
    """z1 - z2 of a row of logits, in nats."""
    best = np.partition(row, len(row) - 2)[-2:]
    return float(best[1] - best[0])


def nats_of(row: npt.NDArray[np.float32], token: int) -> float:
    """-log of the target's probability of a token, by its logits."""
    top = float(row.max())
    return top + math.log(float(np.exp(row - top, dtype=np.float64).sum())) - float(row[token])


def equality(
    llm: SpeculativeLlama,
    records: Sequence[RunRecord],
    questions: Sequence[Question],
    tie: float | None = None,
) -> tuple[list[Difference], float]:
    """First differences from plain decoding's, with the target's gap at each, and the bound."""
    plain, template = _plain(records), ChatTemplate.of(llm)
    asked = {question.question_id: question.turns for question in questions}
    if not plain:
        return [], 0.0

    def prompt(record: RunRecord, number: int) -> list[int]:
        messages: list[Message] = []
        for text, turn in zip(asked[record.question_id], record.turns[:number], strict=False):
            messages.append(Message(role="user", content=text))
            messages.append(Message(role="assistant", tokens=turn.tokens))
        last = asked[record.question_id][number]
        return template.prompt([*messages, Message(role="user", content=last)])

    if tie is None:
        turns = [(record, i) for record in plain.values() for i in range(len(record.turns))]
        longest = sorted(turns, key=lambda turn: -len(turn[0].turns[turn[1]].tokens))[:_TEXTS]
        tie = tie_bound(llm, [(prompt(r, i), r.turns[i].tokens) for r, i in longest])
    found = []
    for one in differences(records):
        base = plain[one.question_id, one.repeat]
        text = [*prompt(base, one.turn), *base.turns[one.turn].tokens[: one.place]]
        row = next(rows_after(llm, text, [0]))
        found.append(msgspec.structs.replace(one, gap=top_gap(row)))
    return found, tie


def _plain(records: Sequence[RunRecord]) -> dict[tuple[int | str, int], RunRecord]:
    """Plain decoding's answers, by question and repeat."""
    plain = [r for r in records if r.who == "plain" and not r.error and r.turns]
    return {(r.question_id, r.repeat): r for r in plain}
