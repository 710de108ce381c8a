"""`Batch`: many prompts over one set of models, from Python."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import zip_longest
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp

from pyspec.batch.contexts import MOST_SEQUENCES, Contexts, Models, best_parallel, open_contexts
from pyspec.batch.identity import changing_texts, identity_of
from pyspec.batch.jobs import Job
from pyspec.batch.maker import JobMaker, Settings
from pyspec.batch.room import STEP, memory_for
from pyspec.batch.scheduler import Scheduler
from pyspec.engine.handle import MAX_DRAFT, Role
from pyspec.engine.models import Placement
from pyspec.engine.offload import placed
from pyspec.engine.parked import room_for_parked
from pyspec.engine.parts import MemoryChoice
from pyspec.engine.statistics import Tally
from pyspec.engine.tensor_places import Overrides
from pyspec.errors import Cancelled, InputError, OptionError
from pyspec.llama.arguments import file_of
from pyspec.llama.prompt_cache import PromptFile
from pyspec.policy.cost import CostCurve
from pyspec.policy.lengths import parse_length
from pyspec.policy.policies import Policies
from pyspec.requests.records import Record
from pyspec.sampling.limits import check_ranges
from pyspec.text.result import RecordResult

log = logging.getLogger("pyspec")

Take = Callable[[], tuple[int, Record] | Job | None]

WINDOW = 64
"""Fewest records that wait to be ordered by length."""

FEWEST = 4
"""Answers at once where people wait for them and nobody said how many, at least."""

_MOST_UNASKED = 16  # answers at once where nobody said how many


_COUNTED = ("tokens", "drafted", "verified", "accepted", "relaxed")


class Batch:
    """Answers many prompts at once. One thread at a time.

    Arguments not listed are those of `SpeculativeLlama` and llama-cpp-python.

    Args:
        model_path: A file or a name.
        settings: Sampling, acceptance rule, max_tokens, system text and stop strings of records that bring none.
        parallel: Answers at once, 1 to 64; None for as many as the cost curve says pay and memory holds.
        n_ctx: Positions a record may use, prompt and answer.
        cells: KV cells of all sequences together; None for what `run` finds its records to need.
        draft_max: Longest draft of a sequence, in tokens.
        exact: A text depends on its record alone, not on neighbours, order or interruptions: nothing is drafted, and
            every decode of answers has `parallel` rows.
        interactive: People wait for the answers: first come, first served, each may use n_ctx positions at once, and
            what free sequences hold is kept for prompts that begin alike.
        token_gap: Milliseconds that people may wait for an answer's next token while prompts are read beside it;
            None for 250, or four times what the answers' own decode takes.
        cache_ram: MiB of this machine's memory for conversations whose sequence others took, where `interactive`; 0 for none,
            None for an eighth of what is free.
        prompt_cache: A file that keeps the longest beginning that prompts share, for the next `Batch`.
        memory: Whether lookup drafts what other records said; a folder keeps it for the next `Batch`.

    Attributes:
        on_placed: Called with `placed` each time that contexts are made.

    Raises:
        PyspecError: OptionError, ModelInvalid, DraftMismatch and the like, when made.
    """

    on_placed: Callable[[str], None] = staticmethod(lambda _placed: None)

    def __init__(
        self,
        model_path: str,
        *,
        draft: Any = "auto",
        companion: str = "none",
        length: str = "auto",
        settings: Settings = Settings(),  # noqa: B008 - frozen
        parallel: int | None = None,
        n_ctx: int = 4096,
        cells: int | None = None,
        draft_max: int | None = None,
        draft_n_gpu_layers: int | str | None = None,
        draft_devices: str | Sequence[str] | None = None,
        draft_type_k: int | None = None,
        draft_type_v: int | None = None,
        draft_n_cpu_moe: int = 0,
        draft_override_tensor: Overrides | None = None,
        exact: bool = False,
        interactive: bool = False,
        token_gap: float | None = None,
        cache_ram: int | None = None,
        prompt_cache: str | Path | None = None,
        memory: MemoryChoice = True,
        **kwargs: Any,
    ) -> None:
        _check(parallel, n_ctx, draft_max)
        chosen = parse_length(length)
        self._cells, self._draft_max = cells, MAX_DRAFT if draft_max is None else draft_max
        beside = draft_n_gpu_layers, draft_devices, (draft_type_k, draft_type_v)
        self._placement = Placement.of(*beside, draft_n_cpu_moe, draft_override_tensor)
        own = {"length": length, "draft_max": draft_max, "n_ctx": n_ctx}
        self._options = own | changing_texts(kwargs)
        self._exact, self._interactive, self._prompt_cache = exact, interactive, prompt_cache
        self._gap, self._cache_ram = token_gap, cache_ram
        words: tuple[Any, str] = ("none", "none") if exact else (draft, companion)
        # with as many sequences as may run at once; where none were asked for, the memory says how many
        kwargs |= {"room_for": (n_ctx * (parallel or 1), parallel or 1), "at_once": parallel or _MOST_UNASKED}  # fmt: skip
        self._models = Models(file_of(model_path, **kwargs), *words, memory, **kwargs)
        self._n_ctx = n_ctx = self._models.target.capped(n_ctx)
        self.settings = settings = settings.following(self._models.target, self._models.sides)
        self.jobs = JobMaker(self._models.target, settings, n_ctx, self._models.parts.names)
        self._contexts: Contexts | None = None
        self._scheduler: Scheduler | None = None
        curve, learned = self._models.known()
        scored = self._models.parts.companion is not None
        # one for all rules and temperatures, as their answers share rounds; ways to draw are learned apart in it
        rule, draw = settings.rule_in_force, settings.sampling.draw
        self._policies = Policies(chosen, curve, learned, companion=scored, rule=rule, draw=draw)
        self.parallel = parallel or self._at_once(curve)
        self._fixed = parallel is not None or exact  # texts of `exact` depend on it
        self._needs = [n_ctx] * self.parallel if interactive else []
        if exact:  # kernels take rows by fours, and the rest one by one
            self._models.target.adapts_threads = False  # others may round otherwise
            self.parallel = 1 if self.parallel == 1 else -(-self.parallel // 4) * 4
            self._options["exact"] = self.parallel
        self._queue, self._noted = deque[Job](), set[str]()
        self._cancelled, self._total, self._seconds = False, Tally(), 0.0
        self._decode_us = [0] * len(Role)

    def _at_once(self, curve: CostCurve) -> int:
        """Answers at once where nobody said how many."""
        best = best_parallel(curve.target.table())
        if not self._interactive:
            return best
        # fewer may be as fast, but one who asks shall not wait for the end of another's answer
        beside = self._models.beside(self._placement)
        room = memory_for(self._models.target, self._n_ctx, beside)
        return max(1, min(max(best, FEWEST), room))

    def run(self, records: Iterable[Record | str]) -> Iterator[RecordResult]:
        """Answer many prompts.

        Args:
            records: Records or bare prompts; each is taken when there is room for it.

        Yields:
            Results as they finish; `result.index` is the record's place.

        Raises:
            Cancelled: After `cancel`.
            InputError: A record is neither a text nor a `Record`.
        """
        if isinstance(records, str):
            raise InputError("the records are a single text", "give a list of texts or Records")
        indexed = ((i, _as_record(record, i)) for i, record in enumerate(records))
        return self._pump(partial(next, indexed, None))

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """`run` for records that bring their own index and are all known: contexts hold the longest of them at once."""
        needs = sorted((self.settings.guess(record) for _, record in records), reverse=True)
        self._needs = [min(need, self._n_ctx) for need in needs[: self.parallel]]
        return self._pump(partial(next, iter(records), None))

    def prepare(self) -> None:
        """Make the contexts now that `stream` would make for its first record. Raises what does not fit."""
        if self._scheduler is None:
            self._open(())

    def submit_job(self, job: Job) -> None:
        """Queue a job of `jobs.job` for `stream`. Safe from any thread."""
        self._queue.append(job)

    @property
    def load(self) -> tuple[int, int]:
        """Jobs that run, and jobs that wait."""
        scheduler = self._scheduler
        active, waiting = (scheduler.active, scheduler.waiting) if scheduler else ((), ())
        return len(active), len(waiting) + len(self._queue)

    @property
    def target(self) -> Any:
        """The target, a `llama_cpp.Llama`."""
        return self._models.target

    @property
    def vocab(self) -> Any:
        """The target's vocabulary, as llama.cpp has it."""
        return self.target._model.vocab  # noqa: SLF001 - llama_cpp has no public way

    @property
    def facts(self) -> dict[str, Any]:
        """What the target is: vocabulary, context, parameters, bytes; and what drafts for it."""
        model = self._models.target.model
        draft, companion = self._models.parts.names
        return {
            "n_vocab": self._models.target.n_vocab(),
            "n_ctx": self._n_ctx,
            "n_params": int(llama_cpp.llama_model_n_params(model)),
            "size": int(llama_cpp.llama_model_size(model)),
            "memory": self.nbytes,
            "parallel": self.parallel,
            "draft": draft,
            "companion": companion,
        }

    @property
    def nbytes(self) -> int:
        """Bytes that all weights and KV caches take."""
        cells = self._contexts.layout.cells if self._contexts else 0
        return self._models.held(cells, self.parallel, self._placement)

    @property
    def placed(self) -> str:
        """What lies on which devices, in one line; empty where all is the processor's."""
        sides = self._contexts.assembly.placed if self._contexts is not None else []
        return placed(self._models.target, sides)

    @property
    def speed(self) -> float:
        """Times as fast as without drafts, by the cost curve, over all rounds with nothing but answers; 0 for not known."""
        return self._total.times_plain or 0.0

    def stream(self, after: Callable[[], None] | None = None) -> Iterator[RecordResult]:
        """Results of submitted jobs until none is left; more may come meanwhile. after: called behind each round."""
        return self._pump(lambda: self._queue.popleft() if self._queue else None, after)

    def cancel(self) -> None:
        """End what runs: the iterator raises Cancelled at once, even out of a decode. Safe from any thread."""
        self._cancelled = True
        if self._contexts is not None:
            self._contexts.engine.cancel()

    def _pump(self, take: Take, after: Callable[[], None] | None = None) -> Iterator[RecordResult]:
        start = perf_counter()
        self._cancelled = False
        if self._contexts is not None:
            self._contexts.engine.cancel(raised=False)
        try:
            while True:
                yield from self._fill_window(take)
                scheduler = self._scheduler
                if scheduler is None or not (scheduler.waiting or scheduler.active):
                    return
                ended = scheduler.round()
                if after is not None:
                    after()
                yield from ended
                if scheduler.outgrown:
                    self._outgrow(scheduler.waiting.jobs)
        finally:
            self._seconds += perf_counter() - start
            if self._scheduler is not None:
                self._scheduler.abandon()

    def _fill_window(self, take: Take) -> Iterator[RecordResult]:
        """Take records until the window is full; those that cannot run come back at once."""
        jobs: list[Job] = []
        room = self._scheduler.waiting.room if self._scheduler else self._window
        while len(jobs) < room and (item := take()) is not None:
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            made = self.jobs.make(*item) if isinstance(item, tuple) else item
            if isinstance(made, RecordResult):
                yield made
            else:
                jobs.append(made)
        if jobs:
            self._add(jobs)

    @property
    def _window(self) -> int:
        return max(WINDOW, 4 * self.parallel)

    def _add(self, jobs: Sequence[Job]) -> None:
        scheduler = self._scheduler or self._open(jobs)
        for job in jobs:
            scheduler.waiting.add(job)

    def _open(self, jobs: Sequence[Job]) -> Scheduler:
        """Make contexts that hold the largest of these jobs, and of those expected, at once."""
        found = sorted((job.need for job in jobs), reverse=True)[: self.parallel]
        needs = [max(pair) for pair in zip_longest(found, self._needs, fillvalue=0)]
        # so many cells and no more, where they were asked for, are a pool
        asked = [self._cells] if self._cells else needs
        must_pool = bool(self._cells) or self._models.must_draft
        self._contexts = made = open_contexts(
            self._models, self.parallel, self._n_ctx, asked, self._placement,
            most=None if self._fixed else self._room, must_pool=must_pool, must_stream=self._exact,
        )  # fmt: skip
        self.parallel = made.n_slots
        self.on_placed(self.placed)
        for note in (*made.assembly.notes, made.assembly.hint()):
            if note and note not in self._noted:
                self._noted.add(note)
                log.warning("%s", note)
        self._scheduler = Scheduler(
            made, self._policies, self._draft_max, self._window, self._total,
            interactive=self._interactive, exact=self._exact, gap=self._gap,
            cache=room_for_parked(self._cache_ram), public=lambda: self.jobs.public,
        )  # fmt: skip
        if self._prompt_cache is not None:
            file = PromptFile(self.target, Path(self._prompt_cache))
            self._scheduler.kept.restore(file, made.layout.each or made.layout.cells)
        return self._scheduler

    @cached_property
    def _room(self) -> int:
        """KV cells that memory has for sequences that nobody asked for, known before the first contexts are made."""
        return STEP * memory_for(self.target, STEP, self._models.beside(self._placement))

    def _outgrow(self, jobs: Sequence[Job]) -> None:
        """Make larger contexts for the jobs that wait: none of them fits those there are."""
        self._close_contexts()
        self._add(jobs)
        if self._cancelled:  # while there was no engine to be told
            raise Cancelled("the batch was cancelled")

    def _close_contexts(self) -> None:
        if self._contexts is not None:
            self._decode_us = self._decoding()
            if self._prompt_cache is not None and self._scheduler is not None:
                self._scheduler.kept.save(PromptFile(self.target, Path(self._prompt_cache)))
            self._contexts.close()
        self._contexts = self._scheduler = None

    def _decoding(self) -> list[int]:
        """Microseconds in llama.cpp's decodes, by role, with contexts that are gone."""
        now = self._contexts.engine.decode_us() if self._contexts else [0] * len(Role)
        return [a + b for a, b in zip(self._decode_us, now)]

    def identity(self) -> dict[str, Any]:
        """What the answers depend on: version, hashes of models, options. Not the parallelism."""
        return identity_of(self._models, self.settings, self._options)

    def stats(self) -> dict[str, Any]:
        """Counts and times since this was made. decode_s is time inside llama.cpp's decodes, by role."""
        scheduler, contexts, total = self._scheduler, self._contexts, self._total
        times, seconds = [1e-6 * us for us in self._decoding()], self._seconds
        return {
            "parallel": self.parallel,
            "seconds": round(seconds, 3),
            **{name: getattr(total, name) for name in _COUNTED},
            "tokens_per_second": round(total.tokens / seconds, 2) if seconds else 0.0,
            "kv_cells": contexts.layout.cells if contexts else 0,
            "streams": bool(contexts and contexts.layout.each),
            "prefix_tokens": len(scheduler.kept.shared) if scheduler else 0,
            "decode_s": {role.name.lower(): round(s, 3) for role, s in zip(Role, times)},
            "outside_decodes": round(1 - sum(times) / seconds, 4) if seconds else 0.0,
        }

    def close(self) -> None:
        """Free the models; calling it again does nothing."""
        self._close_contexts()
        self._models.close()

    def __del__(self) -> None:
        if hasattr(self, "_decode_us"):  # made to the end
            self.close()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(parallel: int | None, n_ctx: int, draft_max: int | None) -> None:
    """Raise OptionError for a number that cannot be."""
    if parallel is not None and not 1 <= parallel <= MOST_SEQUENCES:
        raise OptionError(f"parallel is {parallel}", f"use 1 to {MOST_SEQUENCES}")
    check_ranges({"n_ctx": n_ctx, "draft_max": draft_max})
    if n_ctx < 1:
        raise OptionError(f"n_ctx is {n_ctx}", "use 1 or more")


def _as_record(record: Record | str, index: int) -> Record:
    if isinstance(record, str):
        return Record(id=str(index), prompt=record)
    if not isinstance(record, Record):
        raise InputError(f"record {index} is a {type(record).__name__}", "give texts or Records")
    return record
