"""Composes the next decode: the answers that continue, and the prefill chunks beside them; scores a prompt by chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspec.draft.costs import CostCurve
from pyspec.engine.answer import Answer
from pyspec.engine.contexts import Contexts
from pyspec.engine.handle import PREFILL_CHUNK, Engine, Role
from pyspec.text.parts import TokenLogprobs

GAP_MS = 250.0
"""Default limit, in ms, on the wait for an answer's next token while prompts are prefilled beside it."""

_BASES = 4.0  # least default limit, in times of the answers' own decode, for slow machines
_ALIKE = 1.25  # a row may take so many times as long in a larger decode to count as equally fast
_HOPE = 0.9  # time of a row in a decode larger than any before, relative to the nearest known
_MAX_TIMES = 3.0  # outliers: longer decodes count as so many times the expected time
_NEWEST = 0.3  # weight of the last decode in the moving average


class Composer:
    """Composes decodes of `active`, answers by sequence.

    interactive: every running answer has a row in each decode, and prefill chunks delay no answer by more than `gap` ms; None for
    GAP_MS, or more on a slow machine. Otherwise, in streams, decoding pauses while many prompts are prefilled, since a prompt's
    row is cheapest beside rows of the same prompt. exact: see `Scheduler`. curve: costs of answers' rows.
    """

    def __init__(
        self,
        contexts: Contexts,
        active: Mapping[int, Answer],
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
        self._answers = dict[int, float]()  # ms of decodes without prefill, by number of answers
        self._prefill_time = PrefillTime()

    @property
    def admission_waits(self) -> bool:
        """Whether the next request has to wait until the present prefill ends.

        In streams beside answers, each prefilling sequence has a row in every decode, and a prompt's row alone is expensive.
        """
        reading = any(answer.run.missing for answer in self._active.values())
        return reading and self._interactive and self._streams

    def next(self) -> tuple[list[Answer], list[tuple[Answer, int]]]:
        """The answers to continue in the next decode, and (answer, n) for each prefill chunk of n tokens.

        An answer whose prompt is prefilled to its last token is among the former: the same decode yields its first token.
        """
        answers = self._decoding()
        reading = self._prefill_chunks(len(answers))
        answers += [answer for answer, n in reading if n > answer.run.missing]
        return answers, [(answer, n) for answer, n in reading if n <= answer.run.missing]

    def _decoding(self) -> list[Answer]:
        read = [answer for answer in self._active.values() if not answer.run.missing]
        answers = [answer for answer in read if answer.ready]
        reading = len(self._active) - len(read)
        if self._exact:
            return [] if reading or len(answers) < len(read) else answers
        most = 0 if self._many else self._contexts.n_slots // 4
        self._many = self._streams and not self._interactive and reading > most
        return [] if self._many else answers

    def _prefill_chunks(self, n_decoding: int) -> list[tuple[Answer, int]]:
        """The answers in prefill, and the tokens of each one's next chunk, the prompt's last token included."""
        # the dict keeps the order of admission: the first one in prefill has waited longest
        reading = [(seq, a.run.missing) for seq, a in self._active.items() if a.run.missing]
        if self._exact:
            held = self._contexts.engine.held(Role.TARGET, reading[0][0]) if reading else 0
            # of the first prompt alone, to the next multiple of the chunk
            chunk = PREFILL_CHUNK - held % PREFILL_CHUNK
            shares = [(seq, min(missing, chunk)) for seq, missing in reading[:1]]
        else:
            rows = [(seq, missing + self._active[seq].ready) for seq, missing in reading]
            shared = partial(share_in_streams, beside=n_decoding) if self._streams else share_rows
            running = self._interactive and self._running
            n_rows = max(1, n_decoding) if running else n_decoding
            shares = shared(rows, self.chunk_size(self._contexts.fill_rows(n_rows)))
        return [(self._active[seq], n) for seq, n in shares]

    @property
    def _running(self) -> int:
        return sum(not a.run.missing and a.scored is None for a in self._active.values())

    def chunk_size(self, most: int) -> int:
        """The size of a prefill chunk, at most `most` tokens, beside the running answers.

        If interactive, as large as the gap allows, with the decode's size among those where a row is cheapest.
        """
        n = self._running
        if not self._interactive or self._exact or not n:
            return most
        base, row = self._base(n)
        gap = self._gap or max(GAP_MS, _BASES * base)
        left = max(gap - base, base)  # half of a decode's time is for prompts in any case
        return self._prefill_time.best(n, most, left, row)

    def _base(self, n: int) -> tuple[float, float]:
        """Milliseconds of a decode of n answers alone, and a first estimate for a prompt's row, by the curve."""
        table = self._curve.target.table()
        last = len(table) - 1
        return self._answers.get(n) or table[min(n, last)], table[last] / last

    def took(self, filled: int, n_answers: int, ms: float) -> None:
        """Learn from the time of a decode. filled: its prompt tokens."""
        if filled and n_answers:
            self._prefill_time.learn(n_answers, filled, ms - self._base(n_answers)[0])
        elif n_answers:
            before = self._answers.get(n_answers, ms)
            self._answers[n_answers] = before + _NEWEST * (min(ms, _MAX_TIMES * before) - before)


class PrefillTime:
    """Milliseconds of a prompt's row beside answers, by the octave of the decode's rows.

    Kernels work in tiles of rows, so that 64 may take less time than 48.
    """

    def __init__(self) -> None:
        self._row: dict[int, float] = {}

    def learn(self, n_answers: int, rows: int, ms: float) -> None:
        """Learn from a decode whose prompt rows took `ms`. Outliers are capped, since the machine may have been busy.

        Few rows beside many answers are ignored: the time of the answers' rows varies by more than theirs.
        """
        octave, row = (n_answers + rows).bit_length(), max(ms, 0.0) / rows
        if rows >= (1 << octave) // 4:
            before = self._row.get(octave, row)
            self._row[octave] = before + _NEWEST * (min(row, _MAX_TIMES * before) - before)

    def best(self, n_answers: int, most: int, ms: float, assumed: float) -> int:
        """The largest number of prompt rows, at most `most`, that fit `ms` at the cheapest sizes. assumed: estimate of a row."""
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
        """A row's time. An unknown octave takes the nearest one's, reduced if it is larger, so that larger decodes are tried."""
        if not self._row or octave in self._row:
            return self._row.get(octave, assumed)
        nearest = min(self._row, key=lambda known: (abs(known - octave), known))
        return self._row[nearest] * (_HOPE if octave > nearest else 1.0)


def share_in_streams(
    reading: Sequence[tuple[int, int]], budget: int, beside: int
) -> list[tuple[int, int]]:
    """`share_rows` for streams: reads one prompt at a time; beside answers, the other prompts get a row each.

    Equal rows of consecutively numbered sequences are decoded together, so no number may be missing.
    """
    if not reading or budget < 1:
        return []
    (first, missing), others = reading[0], reading[1:] if beside else []
    return [(first, max(1, min(missing, budget - len(others)))), *((seq, 1) for seq, _ in others)]


def share_rows(reading: Sequence[tuple[int, int]], budget: int) -> list[tuple[int, int]]:
    """Share `budget` rows among sequences being read, given as (sequence, tokens missing), longest waiting first.

    The first one is sure of a quarter; the rest goes to those with the least left.
    """
    if not reading or budget < 1:
        return []
    first, missing = reading[0]
    shares = {first: min(missing, max(1, budget // 4))}
    budget -= shares[first]
    for seq, left in sorted(reading, key=lambda item: item[1]):
        more = min(budget, left - shares.get(seq, 0))
        if more > 0:
            shares[seq] = shares.get(seq, 0) + more
            budget -= more
    return list(shares.items())


SCORED_CHUNK = 64
"""Prompt tokens of a chunk: the logits of 64 with a vocabulary of 150,000 take 40 MB."""


def score_chunk(engine: Engine, answer: Answer, most: int) -> bool:
    """Score the next `most` tokens of an answer's prompt. Returns whether all but the last token are done. Raises EngineError."""
    scores = answer.scored
    if scores is None:
        return True
    prompt, held, n = answer.tokens, len(scores) - 1, answer.alternatives or 0
    end = min(held + most, len(prompt) - 1)
    if end > held:
        rows = engine.rows_behind(answer.run.seq, prompt[:end], held)
        scores += [TokenLogprobs.of(row, token, n) for row, token in zip(rows, prompt[held + 1 :])]
    return len(scores) == len(prompt)
