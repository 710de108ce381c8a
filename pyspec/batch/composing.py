"""What goes into the next decode: whose answers go on, and how much of whose prompts is read beside them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspec.engine.handle import Role
from pyspec.engine.rows import read_one, read_piece, share_rows
from pyspec.grammar.masks import wait_all

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspec.batch.contexts import Contexts
    from pyspec.batch.jobs import ActiveJob
    from pyspec.policy.cost import CostCurve

MOST_MS = 100.0
"""What a decode may take, about, while people read answers: prompts get what the answers' rows leave of it, or as much again."""

LEAST_ROWS = 16
"""Prompt tokens of a decode that are read in any case."""

_GRACE_S = 0.1
# that a round waits for grammars whose masks take less than that
_POLL_S = 0.1
_NEW = 0.3
# weight of what a decode tells about a prompt's rows


class Composer:
    """Composes decodes of `active`, answers by sequence.

    interactive: people wait: an answer that runs has its row in every decode, and prompts are read in pieces that take no longer
    than MOST_MS, or than the answers' own rows. Else answers of streams wait while many prompts are read: a row of a prompt
    costs least beside others of its own. exact: see `Scheduler`. curve: what answers' rows cost.
    """

    def __init__(
        self,
        contexts: Contexts,
        active: Mapping[int, ActiveJob],
        curve: CostCurve,
        *,
        interactive: bool,
        exact: bool,
    ) -> None:
        self._contexts, self._active, self._curve = contexts, active, curve
        self._interactive, self._exact = interactive, exact
        self._streams = contexts.layout.each > 0
        self._many = False
        self._row_ms, self._pace = 0.0, 1.0
        """Milliseconds of a prompt's row, 0 for not known, and how many times as long as the curve says answers take."""

    def wait(self) -> None:
        """Wait a little for grammars that work on what they allow next; answers whose grammars are slow sit out rounds."""
        late = [a.masks for a in self._active.values() if not a.run.missing and not a.ready]
        if self._exact or len(late) == len(self._active):  # nothing goes on without them
            wait_all(filter(None, late), _POLL_S)
        else:
            wait_all((masks for masks in late if masks and masks.pace < _GRACE_S), _GRACE_S)

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
        begun = self._many and not self._interactive
        self._many = self._streams and reading > (0 if begun else self._contexts.n_slots // 4)
        return [] if self._many and not self._interactive else answers

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
        if self._many:  # as many as there is time for
            return self.piece(self._contexts.n_batch - n_answering)
        return self.piece(self._contexts.fill_rows(max(1, n_answering)))

    @property
    def _running(self) -> int:
        """Answers that have begun."""
        return sum(not a.run.missing and a.scored is None for a in self._active.values())

    def piece(self, most: int) -> int:
        """Of `most` prompt tokens, how many may be read at once beside the answers that run, where people wait for these."""
        if not self._interactive or self._exact or not self._running:
            return most
        plain, table = self._plain(self._running), self._curve.target.table()
        row_ms = self._row_ms or table[-1] / (len(table) - 1)
        return min(most, max(LEAST_ROWS, int(max(MOST_MS - plain, plain) / row_ms)))

    def _plain(self, n_answers: int) -> float:
        """Milliseconds of a decode of answers alone."""
        table = self._curve.target.table()
        return self._pace * table[min(n_answers, len(table) - 1)]

    def took(self, filled: int, n_answers: int, ms: float) -> None:
        """Hear how long a decode took that read so many prompt tokens beside answers."""
        plain = self._plain(n_answers)
        if not filled and plain:
            self._pace = _nearer(self._pace, self._pace * ms / plain)
        elif filled >= LEAST_ROWS // 2 and (n_answers or not self._row_ms):
            self._row_ms = _nearer(self._row_ms, max(0.1 * ms, ms - plain) / filled)


def _nearer(known: float, found: float) -> float:
    """What is known, 0 for nothing, with something new: that the machine did something else once changes little."""
    return known + _NEW * (min(max(found, 0.5 * known), 2.0 * known) - known) if known else found
