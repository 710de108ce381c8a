"""Composes the next decode: which answers continue, and how many prompt tokens are read next to them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pyspec.batch.contexts import Contexts
from pyspec.batch.jobs import ActiveJob
from pyspec.engine.handle import Role
from pyspec.engine.rows import read_one, read_piece, share_rows
from pyspec.policy.cost import CostCurve

MOST_MS = 100.0
"""Rough limit of a decode's time while people read answers: prompts get what the answers' rows leave of it."""

MOST_BASES = 3.0
"""The limit is at least this many times what the answers' rows take."""

MOST_MS_IDLE = 200.0
"""The limit while sequences are idle because their prompts wait to be read."""

MOST_BASES_IDLE = 5.0
"""That limit is at least this many times what the answers' rows take. On slow machines it is the larger one."""

BASES_IDLE = 8.0
"""How much the limit grows with the share of idle sequences, in times of the answers' rows. bench/schedules.py compares."""

LEAST_ROWS = 16
"""Prompt tokens of a decode that are read in any case."""

_OLD = 0.9  # weight of a decode beside the next one's
_MOST_TIMES = 3.0  # what was expected: a decode that took longer counts as one that took so long
_LEAST_SHARE = 0.2  # of a decode's time that is its prompt rows', at least


class Composer:
    """Composes decodes of `active`, answers by sequence.

    interactive: people wait. Every running answer then has a row in each decode, and prompts are read in pieces that keep
    decodes under a time limit (see `_limit`). Otherwise the answers of streams wait while many prompts are read: a prompt's row
    is cheapest next to other rows of the same prompt. exact: see `Scheduler`. curve: costs of answers' rows. idle: replaces
    BASES_IDLE.
    """

    def __init__(
        self,
        contexts: Contexts,
        active: Mapping[int, ActiveJob],
        curve: CostCurve,
        *,
        interactive: bool,
        exact: bool,
        idle: float = BASES_IDLE,
    ) -> None:
        self._contexts, self._active, self._curve = contexts, active, curve
        self._bases_idle = idle
        self._interactive, self._exact = interactive, exact
        self._streams = contexts.layout.each > 0
        self._many = False
        self._idle = 0.0  # share of the sequences whose prompts wait behind another's
        self._time = ReadingTime()

    @property
    def in_turn(self) -> bool:
        """Whether the next prompt is to wait for the one that is read now.

        Over streams each text that has begun has a row in every decode beside answers; a row of a prompt by itself is expensive.
        """
        reading = any(answer.run.missing for answer in self._active.values())
        return reading and self._interactive and self._streams

    def next(self, waiting: int = 0) -> tuple[list[ActiveJob], list[tuple[ActiveJob, int]]]:
        """Answers that have a row in the next decode, and those of which n prompt tokens, (answer, n), are read beside them.

        Whose prompt is read to its last token gives the first token of its answer in the same decode. waiting: how many have
        not begun.
        """
        answers = self._answering(waiting)
        reading = self._reading(len(answers))
        answers += [answer for answer, n in reading if n > answer.run.missing]
        return answers, [(answer, n) for answer, n in reading if n <= answer.run.missing]

    def _answering(self, waiting: int) -> list[ActiveJob]:
        read = [answer for answer in self._active.values() if not answer.run.missing]
        answers = [answer for answer in read if answer.ready]
        reading = len(self._active) - len(read)
        if self._exact:
            return [] if reading or len(answers) < len(read) else answers
        slots = self._contexts.n_slots
        most = slots // 4
        if self._interactive:
            self._many = reading + waiting > most
            self._idle = max(0, min(reading + waiting, slots - len(read)) - 1) / slots
            return answers
        self._many = self._streams and reading > (0 if self._many else most)
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
        if not self._interactive or not self._running:
            return self._contexts.fill_rows(n_answering)
        most = self._contexts.fill_rows(max(1, n_answering))
        if self._many and self._time.known:  # as many as there is known to be time for
            most = max(most, self._contexts.answering_rows - n_answering)
        return self.piece(most)

    @property
    def _running(self) -> int:
        return sum(not a.run.missing and a.scored is None for a in self._active.values())

    def piece(self, most: int) -> int:
        """Of `most` prompt tokens, how many may be read at once beside the answers that run, where people wait for these."""
        if not self._interactive or self._exact or not self._running:
            return most
        base, row = self._time.line if self._time.known else self._assumed
        return min(most, max(LEAST_ROWS, int((self._limit(base) - base) / row)))

    def _limit(self, base: float) -> float:
        """Return how many milliseconds a decode may take, of which the answers' rows take `base`.

        Reading a prompt takes the same total time in small pieces as in large ones. But the sequences that wait for it answer
        nothing meanwhile, so decodes are less full. The more sequences wait, the larger the pieces.
        """
        most = max(MOST_MS_IDLE, MOST_BASES_IDLE * base)
        idle = min(most, (MOST_BASES + self._bases_idle * self._idle) * base)
        return max(MOST_MS, MOST_BASES * base, idle)

    @property
    def _assumed(self) -> tuple[float, float]:
        """Milliseconds of a decode of the answers, and of a prompt's row, by the curve."""
        table = self._curve.target.table()
        last = len(table) - 1
        return table[min(self._running, last)], table[last] / last

    def took(self, filled: int, n_answers: int, ms: float) -> None:
        """Hear how long a decode took that read so many prompt tokens beside answers."""
        if filled and n_answers:
            self._time.learn(filled, ms)


class ReadingTime:
    """What decodes take that read prompts beside answers: base + row * rows milliseconds, by least squares over those of late."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    @property
    def known(self) -> bool:
        """Whether there was any."""
        return self._sums[0] > 0.0

    def learn(self, rows: int, ms: float) -> None:
        """Hear of one; that the machine did something else once changes little."""
        if self.known:
            base, row = self.line
            ms = min(ms, _MOST_TIMES * (base + row * rows))
        new = (1.0, rows, ms, rows * rows, rows * ms)
        self._sums = [_OLD * old + each for old, each in zip(self._sums, new)]

    @property
    def line(self) -> tuple[float, float]:
        """`base` and `row`; rows that hardly differ say nothing of what is not theirs."""
        n, x, y, xx, xy = self._sums
        even, spread = y / x, n * xx - x * x
        slope = (n * xy - x * y) / spread if spread > n * n else even
        row = min(max(slope, _LEAST_SHARE * even), even)
        return (y - row * x) / n, row
