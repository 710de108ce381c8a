"""Composes the next decode: which answers continue, and how many prompt tokens are read next to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspec.batch.contexts import Contexts
from pyspec.batch.jobs import ActiveJob
from pyspec.engine.handle import Role
from pyspec.engine.rows import read_one, read_piece, share_rows
from pyspec.policy.cost import CostCurve

GAP_MS = 250.0
"""How long people who read an answer may wait for its next token while prompts are read beside it, unless they say so."""

_BASES = 4.0  # or this many times what the answers' rows take, if that is longer: a machine that is slow with many answers
_ALIKE = 1.25  # times as long that a row may take in a larger decode to count as equally fast
_HOPE = 0.9  # what a row is hoped to take in a larger decode than any before, in known times
_MOST_TIMES = 3.0  # what was expected: a decode that took longer counts as one that took so long
_NEWEST = 0.3  # weight of the last decode


class Composer:
    """Composes decodes of `active`, answers by sequence.

    interactive: people wait. Every running answer then has a row in each decode, and prompts are read in pieces for which no
    answer waits longer than `gap` ms; None for GAP_MS, or more where the machine is slow. Otherwise the answers of streams wait
    while many prompts are read: a prompt's row is cheapest next to other rows of the same prompt. exact: see `Scheduler`.
    curve: costs of answers' rows.
    """

    def __init__(
        self,
        contexts: Contexts,
        active: Mapping[int, ActiveJob],
        curve: CostCurve,
        *,
        interactive: bool,
        exact: bool,
        gap: float | None = None,
    ) -> None:
        self._contexts, self._active, self._curve = contexts, active, curve
        self._gap = gap
        self._interactive, self._exact = interactive, exact
        self._streams = contexts.layout.each > 0
        self._many = False
        self._answers = dict[int, float]()  # ms of decodes of so many answers alone
        self._reading_time = ReadingTime()

    @property
    def in_turn(self) -> bool:
        """Whether the next prompt is to wait for the one that is read now.

        Over streams each text that has begun has a row in every decode beside answers; a row of a prompt by itself is expensive.
        """
        reading = any(answer.run.missing for answer in self._active.values())
        return reading and self._interactive and self._streams

    def next(self) -> tuple[list[ActiveJob], list[tuple[ActiveJob, int]]]:
        """Answers that have a row in the next decode, and those of which n prompt tokens, (answer, n), are read beside them.

        Whose prompt is read to its last token gives the first token of its answer in the same decode.
        """
        answers = self._answering()
        reading = self._reading(len(answers))
        answers += [answer for answer, n in reading if n > answer.run.missing]
        return answers, [(answer, n) for answer, n in reading if n <= answer.run.missing]

    def _answering(self) -> list[ActiveJob]:
        read = [answer for answer in self._active.values() if not answer.run.missing]
        answers = [answer for answer in read if answer.ready]
        reading = len(self._active) - len(read)
        if self._exact:
            return [] if reading or len(answers) < len(read) else answers
        most = 0 if self._many else self._contexts.n_slots // 4
        self._many = self._streams and not self._interactive and reading > most
        return [] if self._many else answers

    def _reading(self, n_answering: int) -> list[tuple[ActiveJob, int]]:
        """Whose prompts the next decode reads on, and how many tokens of each, the last one included."""
        # the dict keeps the order of starting: the first one that reads has waited longest
        reading = [(seq, a.run.missing) for seq, a in self._active.items() if a.run.missing]
        if self._exact:
            held = self._contexts.engine.held(Role.TARGET, reading[0][0]) if reading else 0
            shares = read_piece(reading, held)
        else:
            rows = [(seq, missing + self._active[seq].ready) for seq, missing in reading]
            shared = partial(read_one, beside=n_answering) if self._streams else share_rows
            shares = shared(rows, self._room(n_answering))
        return [(self._active[seq], n) for seq, n in shares]

    def _room(self, n_answering: int) -> int:
        """Prompt tokens that the next decode takes."""
        running = self._interactive and self._running
        return self.piece(self._contexts.fill_rows(max(1, n_answering) if running else n_answering))

    @property
    def _running(self) -> int:
        return sum(not a.run.missing and a.scored is None for a in self._active.values())

    def piece(self, most: int) -> int:
        """Of `most` prompt tokens, how many may be read at once beside the answers that run, where people wait for these.

        As many as the gap allows, in decodes of a size in which a row is as cheap as in any.
        """
        n = self._running
        if not self._interactive or self._exact or not n:
            return most
        base, row = self._base(n)
        gap = self._gap or max(GAP_MS, _BASES * base)
        left = max(gap - base, base)  # half of a decode's time is for prompts in any case
        return self._reading_time.best(n, most, left, row)

    def _base(self, n: int) -> tuple[float, float]:
        """Milliseconds of a decode of so many answers, and of a prompt's row by the curve, to begin with."""
        table = self._curve.target.table()
        last = len(table) - 1
        return self._answers.get(n) or table[min(n, last)], table[last] / last

    def took(self, filled: int, n_answers: int, ms: float) -> None:
        """Hear how long a decode took that read so many prompt tokens beside answers."""
        if filled and n_answers:
            self._reading_time.learn(n_answers, filled, ms - self._base(n_answers)[0])
        elif n_answers:
            before = self._answers.get(n_answers, ms)
            self._answers[n_answers] = before + _NEWEST * (min(ms, _MOST_TIMES * before) - before)


class ReadingTime:
    """What a prompt's row takes beside answers, in milliseconds, by the octave of the decode's rows.

    Kernels work in tiles of rows: 64 may take less time than 48.
    """

    def __init__(self) -> None:
        self._row: dict[int, float] = {}

    def learn(self, n_answers: int, rows: int, ms: float) -> None:
        """Hear of a decode whose prompt rows took so long; that the machine did something else once changes little.

        Few rows beside many answers tell nothing: how long these took differs more from decode to decode.
        """
        octave, row = (n_answers + rows).bit_length(), max(ms, 0.0) / rows
        if rows >= (1 << octave) // 4:
            before = self._row.get(octave, row)
            self._row[octave] = before + _NEWEST * (min(row, _MOST_TIMES * before) - before)

    def best(self, n_answers: int, most: int, ms: float, assumed: float) -> int:
        """Of `most` prompt rows, as many as take so long where rows are cheapest. assumed: what one takes if none is known."""
        found = []
        for octave in range((n_answers + 1).bit_length(), (n_answers + most).bit_length() + 1):
            row = self._expected(octave, assumed)
            n = min(most, (1 << octave) - 1 - n_answers, int(ms / row) if row > 0.0 else most)
            if n_answers + n >= 1 << octave - 1 and n >= (1 << octave) // 4:
                found.append((row, n))
        if not found:
            row = self._expected((n_answers + 1).bit_length(), assumed)
            return min(most, max(1, int(ms / row))) if row > 0.0 else most
        cheap = _ALIKE * min(row for row, _ in found)
        return max(n for row, n in found if row <= cheap)

    def _expected(self, octave: int, assumed: float) -> float:
        """What a row takes; in a decode smaller than any yet as in the smallest, in a larger one hopefully less."""
        if not self._row or octave in self._row:
            return self._row.get(octave, assumed)
        nearest = min(self._row, key=lambda known: (abs(known - octave), known))
        return self._row[nearest] * (_HOPE if octave > nearest else 1.0)
