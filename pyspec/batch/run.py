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

from pyspec._lib import release_workers
from pyspec.batch.journal import changing_texts, identity_of
from pyspec.batch.maker import AnswerMaker, Settings
from pyspec.draft.costs import CostCurve
from pyspec.draft.policies import parse_length
from pyspec.engine.answer import Answer
from pyspec.engine.contexts import (
    MAX_SEQUENCES,
    STEP,
    Contexts,
    Models,
    best_parallel,
    memory_for,
    open_contexts,
)
from pyspec.engine.handle import Role
from pyspec.engine.kept import PromptFile, room_for_parked
from pyspec.engine.models import SideOptions
from pyspec.engine.offload import placed
from pyspec.engine.profiles import PairMemory
from pyspec.engine.scheduler import Scheduler
from pyspec.engine.statistics import Tally
from pyspec.engine.target import TargetLlama
from pyspec.errors import Cancelled, InputError, OptionError
from pyspec.llama.calls import refuse_unknown
from pyspec.requests.records import Record, as_record
from pyspec.sampling.options import MAX_DRAFT, check_ranges
from pyspec.screen import file_of
from pyspec.text.parts import RecordResult

log = logging.getLogger("pyspec")

Take = Callable[[], tuple[int, Record] | Answer | None]

WINDOW = 64  # least number of waiting records to order by length
MIN_INTERACTIVE = 4  # least default of `parallel` for an interactive batch
_MAX_DEFAULT = 16  # largest default of `parallel`

_COUNTED = ("tokens", "drafted", "verified", "accepted", "relaxed")


class Batch:
    """Answers many prompts at once. One thread at a time.

    Arguments not listed are llama-cpp-python's, and where models lie and how they are opened, as in `SpeculativeLlama`.

    Args:
        model_path: A file or a name.
        settings: Defaults of records: sampling, acceptance rule, max_tokens, system prompt and stop strings.
        parallel: Sequences, 1 to 64; None for as many as the cost curve favours and memory holds.
        n_ctx: Tokens of a record, prompt and answer.
        cells: KV cells of all sequences together; None for what the records need.
        draft_max: Longest draft of a sequence, in tokens.
        exact: Whether a text depends on its record alone, not on neighbours, order or interruptions. Nothing is drafted
            then, and every decode of answers has `parallel` rows.
        interactive: For people who wait: first come, first served, each record may use n_ctx tokens at once, and free
            sequences keep their text for prompts with the same beginning.
        token_gap: Limit in milliseconds on the wait for an answer's next token during prefill, where `interactive`;
            None for 250, or four times the answers' own decode if that is longer.
        cache_ram: MiB of this machine's memory for conversations that lost their sequence, where `interactive`; 0 for none,
            None for an eighth of the free memory.
        prompt_cache: A file that keeps the longest prefix that prompts share, for the next `Batch`.
        memory: Whether lookup drafts from texts of other records.

    Attributes:
        on_placed: Called with `placed` each time that contexts are created.

    Raises:
        PyspecError: OptionError, ModelInvalid, DraftMismatch and the like; TypeError for an argument that there is not.
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
        exact: bool = False,
        interactive: bool = False,
        token_gap: float | None = None,
        cache_ram: int | None = None,
        prompt_cache: str | Path | None = None,
        memory: bool = True,
        **kwargs: Any,
    ) -> None:
        _check(parallel, n_ctx, draft_max, kwargs)
        policy = parse_length(length)
        self._cells, self._draft_max = cells, MAX_DRAFT if draft_max is None else draft_max
        beside = draft_n_gpu_layers, draft_devices, (draft_type_k, draft_type_v)
        self._side_options = SideOptions.of(*beside)
        own = {"length": length, "draft_max": draft_max, "n_ctx": n_ctx}
        self._options = own | changing_texts(kwargs)
        self._exact, self._interactive = exact, interactive
        self._prompt_cache, self._gap, self._cache_ram = prompt_cache, token_gap, cache_ram
        words: tuple[Any, str] = ("none", "none") if exact else (draft, companion)
        # without `parallel`, memory decides later how many sequences there are
        kwargs |= {"room_for": (n_ctx * (parallel or 1), parallel or 1), "at_once": parallel or _MAX_DEFAULT}  # fmt: skip
        self._models = models = Models(file_of(model_path), *words, memory, **kwargs)
        self._n_ctx = n_ctx = self._models.target.capped(n_ctx)
        self.settings, sides = settings, models.parts.sides
        self.maker = AnswerMaker(models.target, settings, n_ctx, models.parts.names)
        self._contexts: Contexts | None = None
        self._scheduler: Scheduler | None = None
        # shared by all rules and temperatures, since their answers share rounds; it learns each way to draw separately
        rule, draw = settings.rule, settings.sampling.draw
        # how many answer at once depends on the times of rows, as drafts do
        timed = parallel is None or models.parts.names[0] != "none"
        self._pair = PairMemory(
            self, models.target, sides, policy, timed=timed, rule=rule, draw=draw
        )
        self._policies = self._pair.policies
        self.parallel = parallel or self._at_once(self._policies.curve)
        self._fixed = parallel is not None or exact  # texts of `exact` depend on it
        self._needs = [n_ctx] * self.parallel if interactive else []
        if exact:  # kernels take rows by fours, and the rest one by one
            self._models.target.adapts_threads = False  # other numbers may round otherwise
            self.parallel = 1 if self.parallel == 1 else -(-self.parallel // 4) * 4
            self._options["exact"] = self.parallel
        self._queue, self._noted = deque[Answer](), set[str]()
        self._cancelled, self._total, self._seconds = False, Tally(), 0.0
        self._decode_us = [0] * len(Role)

    def _at_once(self, curve: CostCurve) -> int:
        best = best_parallel(curve.target.table())
        if not self._interactive:
            return best
        # fewer may be as fast, but a request should not wait for the end of another's answer
        room = memory_for(self._models.target, self._n_ctx, self._models.beside(self._side_options))
        return max(1, min(max(best, MIN_INTERACTIVE), room))

    def run(self, records: Iterable[Record | str]) -> Iterator[RecordResult]:
        """Answer many prompts.

        Args:
            records: Records or bare prompts. The next ones are taken when the window has room.

        Yields:
            Results as they finish; `result.index` is the record's index.

        Raises:
            Cancelled: After `cancel`.
            InputError: A record is neither a text nor a `Record`.
        """
        if isinstance(records, str):
            raise InputError("the records are a single text", "give a list of texts or Records")
        indexed = ((i, as_record(record, i)) for i, record in enumerate(records))
        return self._pump(partial(next, indexed, None))

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """`run` for records with indexes that are all known, so that the first contexts hold the longest of them."""
        needs = sorted((self.settings.guess(record) for _, record in records), reverse=True)
        self._needs = [min(need, self._n_ctx) for need in needs[: self.parallel]]
        return self._pump(partial(next, iter(records), None))

    def prepare(self) -> None:
        """Create the contexts now, not at the first record of `stream`. Raises NoMemory and the like."""
        if self._scheduler is None:
            self._open(())

    def submit(self, answer: Answer) -> None:
        """Queue an answer of `maker.answer` for `stream`. Safe from any thread."""
        self._queue.append(answer)

    @property
    def load(self) -> tuple[int, int]:
        """Numbers of running and of waiting answers."""
        scheduler = self._scheduler
        active, waiting = (scheduler.active, scheduler.waiting) if scheduler else ((), ())
        return len(active), len(waiting) + len(self._queue)

    @property
    def target(self) -> Any:
        return self._models.target

    @property
    def vocab(self) -> Any:
        """llama.cpp's handle of the target's vocabulary."""
        return self.target._model.vocab  # noqa: SLF001 - llama_cpp has no public way

    @property
    def facts(self) -> dict[str, Any]:
        """The target's vocabulary, context, parameters and bytes, and the names of draft and companion."""
        model = self._models.target.model
        return {
            "n_vocab": self._models.target.n_vocab(),
            "n_ctx": self._n_ctx,
            "n_params": int(llama_cpp.llama_model_n_params(model)),
            "size": int(llama_cpp.llama_model_size(model)),
            "memory": self.nbytes,
            "parallel": self.parallel,
            **dict(zip(("draft", "companion"), self._models.parts.names)),
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all weights and KV caches."""
        cells = self._contexts.layout.cells if self._contexts else 0
        return self._models.held(cells, self.parallel, self._side_options)

    @property
    def placed(self) -> str:
        """The layers on each device, in one line; empty if all are on the processor."""
        sides = self._contexts.assembly.placed if self._contexts is not None else []
        return placed(self._models.target, sides)

    @property
    def speed(self) -> float:
        """Estimated speed-up by drafts over all rounds without prefill, by the cost curve; 0 for unknown."""
        return self._total.times_plain or 0.0

    def stream(self, after: Callable[[], None] | None = None) -> Iterator[RecordResult]:
        """Results of submitted answers until none is left; more may be submitted meanwhile. after: called after each round."""
        return self._pump(lambda: self._queue.popleft() if self._queue else None, after)

    def cancel(self) -> None:
        """Abort the run: the iterator raises Cancelled at once, even during a decode. Safe from any thread."""
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
                if ended:
                    self._pair.keep_now_and_then()
                yield from ended
                # larger contexts are for the waiting answers, none of which fits
                if scheduler.outgrown:
                    self._close_contexts()
                    self._add(scheduler.waiting.answers)
                    if self._cancelled:  # while there was no engine to cancel
                        raise Cancelled("the batch was cancelled")
        finally:
            self._seconds += perf_counter() - start
            if self._scheduler is not None:
                self._scheduler.abandon()
            release_workers()

    def _fill_window(self, take: Take) -> Iterator[RecordResult]:
        """Take records until the window is full. Yields the results of those that cannot run."""
        answers: list[Answer] = []
        room = self._scheduler.waiting.room if self._scheduler else self._window
        while len(answers) < room and (item := take()) is not None:
            if self._cancelled:
                raise Cancelled("the batch was cancelled")
            made = self.maker.make(*item) if isinstance(item, tuple) else item
            if isinstance(made, RecordResult):
                yield made
            else:
                answers.append(made)
        if answers:
            self._add(answers)

    @property
    def _window(self) -> int:
        return max(WINDOW, 4 * self.parallel)

    def _add(self, answers: Sequence[Answer]) -> None:
        scheduler = self._scheduler or self._open(answers)
        for each in answers:
            scheduler.waiting.add(each)

    def _open(self, answers: Sequence[Answer]) -> Scheduler:
        """Create contexts that hold the largest of these answers, and of those expected, at once."""
        found = sorted((each.need for each in answers), reverse=True)[: self.parallel]
        needs = [max(pair) for pair in zip_longest(found, self._needs, fillvalue=0)]
        # a fixed number of cells needs a pool
        needs = [self._cells] if self._cells else needs
        must_pool = bool(self._cells) or self._models.must_draft
        self._contexts = made = open_contexts(
            self._models, self.parallel, self._n_ctx, needs, self._side_options,
            most=None if self._fixed else self._room, must_pool=must_pool, must_stream=self._exact,
        )  # fmt: skip
        self.parallel = made.n_slots
        made.engine.temper(self._pair.temper)
        self.on_placed(self.placed)
        for note in made.assembly.parts.notes:
            if note not in self._noted:
                self._noted.add(note)
                log.warning("%s", note)
        self._scheduler = Scheduler(
            made, self._policies, self._draft_max, self._window, self._total,
            interactive=self._interactive, exact=self._exact, gap=self._gap,
            cache=room_for_parked(self._cache_ram), public=lambda: self.maker.public,
        )  # fmt: skip
        if self._prompt_cache is not None:
            file = PromptFile(self.target, Path(self._prompt_cache))
            self._scheduler.prefixes.restore(file, made.layout.each or made.layout.cells)
        return self._scheduler

    @cached_property
    def _room(self) -> int:
        """KV cells that memory holds for the default of `parallel`, measured before the first contexts are created."""
        return STEP * memory_for(self.target, STEP, self._models.beside(self._side_options))

    def _close_contexts(self) -> None:
        if self._contexts is not None:
            self._pair.temper = self._contexts.engine.temper()
            self._decode_us = self._decoding()
            if self._prompt_cache is not None and self._scheduler is not None:
                self._scheduler.prefixes.save(PromptFile(self.target, Path(self._prompt_cache)))
            self._contexts.close()
        self._contexts = self._scheduler = None

    def _decoding(self) -> list[int]:
        """Microseconds in llama.cpp's decodes by role, those of closed contexts included."""
        now = self._contexts.engine.decode_us() if self._contexts else [0] * len(Role)
        return [a + b for a, b in zip(self._decode_us, now)]

    def identity(self) -> dict[str, Any]:
        """Version, hashes of models and options that determine the answers. The parallelism is none of them."""
        return identity_of(self._models, self.settings, self._options)

    def stats(self) -> dict[str, Any]:
        """Counts and times since the batch was created. decode_s is time inside llama.cpp's decodes, by role."""
        scheduler, contexts, total = self._scheduler, self._contexts, self._total
        times, seconds = [1e-6 * us for us in self._decoding()], self._seconds
        return {
            "parallel": self.parallel,
            "seconds": round(seconds, 3),
            **{name: getattr(total, name) for name in _COUNTED},
            "tokens_per_second": round(total.tokens / seconds, 2) if seconds else 0.0,
            "kv_cells": contexts.layout.cells if contexts else 0,
            "streams": bool(contexts and contexts.layout.each),
            "prefix_tokens": len(scheduler.prefixes.shared) if scheduler else 0,
            "decode_s": {role.name.lower(): round(s, 3) for role, s in zip(Role, times)},
            "outside_decodes": round(1 - sum(times) / seconds, 4) if seconds else 0.0,
        }

    def close(self) -> None:
        """Free the models. Further calls do nothing."""
        self._close_contexts()
        self._pair.keep()
        self._models.close()

    def __del__(self) -> None:
        if hasattr(self, "_decode_us"):  # __init__ succeeded
            self.close()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(parallel: int | None, n_ctx: int, draft_max: int | None, others: Iterable[str]) -> None:
    """Raise OptionError for a number outside its range, TypeError for an unknown name among the others."""
    refuse_unknown(Batch, others, TargetLlama)
    if parallel is not None and not 1 <= parallel <= MAX_SEQUENCES:
        raise OptionError(f"parallel is {parallel}", f"use 1 to {MAX_SEQUENCES}")
    check_ranges({"n_ctx": n_ctx, "draft_max": draft_max})
    if n_ctx < 1:
        raise OptionError(f"n_ctx is {n_ctx}", "use 1 or more")
