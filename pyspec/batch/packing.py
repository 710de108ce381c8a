"""What is packed together: records into sequences, sequences into KV cells, rows into decodes.

In a pool, rows of sequences that differ in number go through one pass, and a shared beginning takes its
cells once; but attention looks at the mask of every cell for every row. In streams a row meets its
own sequence alone; but a batch of unequal rows falls apart into several passes, so little is drafted
there, and every sequence takes as many cells as the longest.
What prompts begin with alike is read once, and taken over from whichever sequence holds it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

import llama_cpp

from pyspec.engine.handle import Role
from pyspec.tokens import common_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspec.batch.jobs import Job
    from pyspec.engine.handle import Engine

# -- sequences and cells -----------------------------------------------------------------------------

STREAMS_FROM = 8
"""Sequences from which streams without drafts are faster than a pool with lookup, on a CPU."""

WASTE = 3
"""Times the cells of a pool that streams may take."""

STEP = 256
"""llama.cpp rounds contexts, and each stream, up to it."""


_WORTH = 0.03
# what more sequences have to gain to be worth their memory


class Layout(NamedTuple):
    """cells: of each context, all sequences together. each: those of one stream, 0 in a pool."""

    cells: int
    each: int = 0


def lay_out(
    n_slots: int, n_ctx: int, needs: Sequence[int], *, must_pool: bool, must_stream: bool = False
) -> Layout:
    """Cells for `n_slots` records at once.

    n_ctx: positions a sequence may use. needs: cells that the largest records take, largest first.
    Streams for many records of about one length, unless there must be a pool, as for drafts, or streams.
    """
    pool = padded(max(sum(needs[:n_slots]), n_ctx))
    each = padded(needs[0]) if needs else 0
    if must_stream:
        return Layout(each * n_slots, each)
    if must_pool or n_slots < STREAMS_FROM or not 0 < n_slots * each <= WASTE * pool:
        return Layout(pool)
    return Layout(each * n_slots, each)


def padded(cells: int) -> int:
    """The context that llama.cpp makes of so many cells."""
    return -(-cells // STEP) * STEP


def best_parallel(times: Sequence[float]) -> int:
    """How many sequences at once are worth it; `times[n]` is the target's time for n rows.

    The smallest power of two, at most 16, than which none gives 3 % more tokens a second: a step that gains
    nothing may lead to one that does, where two rows cost as much as two single ones and eight as much as four.
    """
    sizes = [n for n in (1, 2, 4, 8, 16) if n < len(times)]
    best = max(n / times[n] for n in sizes)
    return next(n for n in sizes if (1 + _WORTH) * n / times[n] >= best)


_SHARE = 0.25
# of this machine's memory that KV cells may take unless more sequences were asked for


def memory_for(target: Any, n_ctx: int) -> int:
    """How many sequences of n_ctx cells a quarter of this machine's memory holds, at 16 bits an entry."""
    model = target.model
    heads = max(1, llama_cpp.llama_model_n_head(model))
    width = llama_cpp.llama_model_n_embd(model) * llama_cpp.llama_model_n_head_kv(model) // heads
    cell = 4 * max(1, width) * llama_cpp.llama_model_n_layer(model)
    if not hasattr(os, "sysconf"):
        return 1 << 30
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_SHARE * memory / (cell * padded(n_ctx)))


# -- rows of a decode --------------------------------------------------------------------------------

EXACT_CHUNK = 256
"""Prompt tokens of a decode where texts have to be exact: pieces end at its multiples."""


def read_piece(reading: Sequence[tuple[int, int]], held: int) -> list[tuple[int, int]]:
    """The next piece of the first prompt, of which `held` tokens were read."""
    return [(seq, min(missing, EXACT_CHUNK - held % EXACT_CHUNK)) for seq, missing in reading[:1]]


def read_one(reading: Sequence[tuple[int, int]], budget: int, beside: int) -> list[tuple[int, int]]:
    """`share_rows` for streams: one prompt at a time; beside answers, the other prompts get a row each.

    Equal rows of sequences whose numbers follow each other go through together: no number may be missing.
    """
    if not reading or budget < 1:
        return []
    (first, missing), others = reading[0], reading[1:] if beside else []
    return [(first, max(1, min(missing, budget - len(others)))), *((seq, 1) for seq, _ in others)]


def share_rows(reading: Sequence[tuple[int, int]], budget: int) -> list[tuple[int, int]]:
    """Share `budget` rows among sequences that read, given as (sequence, tokens missing), longest waiting first.

    The first one has a quarter for certain; the rest goes to those with the least left.
    """
    if not reading or budget < 1:
        return []
    first, missing = reading[0]
    given = {first: min(missing, max(1, budget // 4))}
    budget -= given[first]
    for seq, left in sorted(reading, key=lambda item: item[1]):
        more = min(budget, left - given.get(seq, 0))
        if more > 0:
            given[seq] = given.get(seq, 0) + more
            budget -= more
    return list(given.items())


# -- the window of records that wait -----------------------------------------------------------------

_PATIENCE = 8
# times that all sequences may be started anew before a record that does not fit is waited for


class Waiting:
    """Jobs in a window, of which the one with the most to do goes first.

    So the end of a batch is not one long answer alone. window: how many are chosen from. in_order: the
    one that came first goes first instead.
    """

    def __init__(self, window: int, n_slots: int, *, in_order: bool = False) -> None:
        self._window, self._patience = window, _PATIENCE * n_slots
        self._in_order = in_order
        self._jobs: list[Job] = []
        self._passed_by = 0

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> int:
        """How many more jobs the window takes."""
        return max(0, self._window - len(self._jobs))

    @property
    def prompts(self) -> list[list[int]]:
        """What is asked, in tokens."""
        return [job.tokens for job in self._jobs]

    @property
    def first(self) -> Job:
        """The job with the most to do; those that have to run alone come before all others."""
        return self._jobs[-1]

    def add(self, job: Job) -> None:
        """Let a job wait for its turn."""
        self._jobs.append(job)
        self._jobs.sort(key=lambda j: (j.alone, 0 if self._in_order else j.need, -j.index))

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """The job with the most to do among those that fit; None where none does, or one that does not has waited for long."""
        for at in range(len(self._jobs) - 1, -1, -1):
            if fits(self._jobs[at]):
                job = self._jobs.pop(at)
                self._passed_by = 0 if at == len(self._jobs) else self._passed_by + 1
                return job
            if self._passed_by >= self._patience:
                break
        return None

    def take_first(self) -> Job:
        """The job with the most to do."""
        return self._jobs.pop()

    def take_ended(self) -> list[Job]:
        """Those that ask for no tokens, and those that were cancelled."""
        ended = [job for job in self._jobs if job.max_tokens == 0 or job.cancelled]
        if ended:
            self._jobs = [job for job in self._jobs if job.max_tokens > 0 and not job.cancelled]
        return ended

    def take_all(self) -> list[Job]:
        """Every one."""
        jobs, self._jobs = self._jobs, []
        return jobs


# -- what prompts begin with alike -------------------------------------------------------------------------------------


LEAST = 16
"""Shortest common beginning worth taking over, tokens."""

_CELLS_A_TOKEN = 64
# a stream is copied whole: so many cells take about the time of reading one token of a small model


class Kept:
    """Which texts free sequences still hold, those freed longest ago first.

    each: cells of a stream, 0 in a pool, where a copy costs nothing.
    """

    def __init__(self, engine: Engine, n_slots: int, each: int) -> None:
        self._engine = engine
        self.least = max(LEAST, each // _CELLS_A_TOKEN)
        self.texts: dict[int, list[int]] = {seq: [] for seq in range(n_slots)}
        self.longest = 0
        """Most tokens that a text took over from another."""

    @property
    def cells(self) -> int:
        """KV cells that these texts take."""
        return sum(len(text) for text in self.texts.values())

    def keep(self, seq: int, text: Sequence[int], n: int) -> None:
        """A sequence is free, and its first n tokens stay."""
        # one token more than is kept: the last token of a text is never held
        held = list(text[: n + 1]) if n > 0 else []
        self._engine.set_tokens(seq, held)
        self.texts[seq] = held

    def source(
        self, prompt: Sequence[int], active: Mapping[int, Sequence[int]]
    ) -> tuple[int | None, int]:
        """Which sequence holds most of a prompt's beginning, and how many tokens."""
        best, most = None, self.least - 1
        for seq, text in (*self.texts.items(), *active.items()):
            n = common(text, prompt)
            if n > most:
                n = min(n, self._engine.held(Role.TARGET, seq))
            if n > most:
                best, most = seq, n
        return best, most if best is not None else 0

    def take(self, seq: int, prompt: Sequence[int], source: int | None, n: int) -> int:
        """Give a free sequence a text, its beginning from `source`; returns the tokens that its KV holds."""
        self.texts.pop(seq)
        if source is not None:
            self.longest = max(self.longest, n)
            if source != seq:
                self._engine.copy_prefix(source, seq, n)
        return self._engine.set_tokens(seq, prompt)

    def drop(self, most: int, spare: int | None = None) -> None:
        """Forget texts, oldest first, until they take at most so many cells; `spare` is kept for longest."""
        for seq in sorted(self.texts, key=lambda seq: seq == spare):
            if self.cells <= most:
                return
            self.texts[seq] = []
            self._engine.set_tokens(seq, ())


def longest_common(text: Sequence[int], prompts: Iterable[Sequence[int]]) -> int:
    """Tokens of `text` that the prompt most like it begins with."""
    return max((common(text, prompt) for prompt in prompts), default=0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with alike, at most all of b but its last."""
    return max(0, min(common_prefix(a, b), len(b) - 1))
