"""Models and contexts of a batch: one target, draft and companion context for all sequences, and what lies in their cells.

In a pool, rows of sequences that differ in number go through one pass, and a shared beginning takes its
cells once; but attention looks at the mask of every cell for every row. In streams a row meets its
own sequence alone; but a batch of unequal rows falls apart into several passes, so little is drafted
there, and every sequence takes as many cells as the longest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
from llama_cpp import _internals as internals

from pyspec.batch.room import STEP, cell_bytes, held_bytes, padded, states_for
from pyspec.engine.assembly import Assembly
from pyspec.engine.handle import Role
from pyspec.engine.models import Placement, longest_draft
from pyspec.engine.parts import MemoryChoice, Parts, choose_parts, states_of
from pyspec.engine.profiles import Side, beginnings, gpu_layers
from pyspec.engine.target import SNAPSHOTS, TargetLlama
from pyspec.errors import EngineError, NoMemory
from pyspec.policy.acceptance import Acceptance
from pyspec.policy.cost import CostCurve
from pyspec.sampling.limits import is_quantised
from pyspec.store.attention import TILE, Attention, Use, attention_of, flash_type
from pyspec.store.devices import AUTO, parse_devices
from pyspec.store.files import size_of
from pyspec.store.heads import MTP, head_size

log = logging.getLogger("pyspec")

# -- sequences and cells ---------------------------------------------------------------------------

MOST_SEQUENCES = 64
"""Cost curves end there."""

STREAMS_FROM = 8
"""Sequences from which streams without drafts are faster than a pool with lookup, on a CPU."""

FEW = 2
"""Most answers at once for which anything drafts over streams: their rows fall apart into as many passes."""

WASTE = 3
"""Times the cells of a pool that streams may take."""

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


def best_parallel(times: Sequence[float]) -> int:
    """How many sequences at once are worth it; `times[n]` is the target's time for n rows.

    The smallest power of two, at most 16, than which none gives 3 % more tokens a second: a step that gains
    nothing may lead to one that does, where two rows cost as much as two single ones and eight as much as four.
    """
    sizes = [n for n in (1, 2, 4, 8, 16) if n < len(times)]
    best = max(n / times[n] for n in sizes)
    return next(n for n in sizes if (1 + _WORTH) * n / times[n] >= best)


# -- models and contexts ---------------------------------------------------------------------------

_ROWS_A_SEQUENCE = 72
# the engine gives each sequence n_batch / n rows for its draft, the longest draft aside


class Models:
    """The target as a `llama_cpp.Llama`, and what will draft for it; contexts come later.

    at_once: sequences at most. kwargs: as `TargetLlama` takes them. Raises ModelInvalid, ModelNotFound or UnsupportedModel.
    """

    def __init__(
        self,
        path: str,
        draft: Any,
        companion: str,
        memory: MemoryChoice = False,
        *,
        at_once: int = 1,
        **kwargs: Any,
    ) -> None:
        self._flash = kwargs.get("flash_attn", AUTO)
        kwargs = {"verbose": False, **kwargs, "flash_attn": bool(self._flash), "n_ctx": STEP}
        self.rows_asked = int(kwargs.get("n_batch", 0)), int(kwargs.get("n_ubatch", 0))
        kwargs["head"] = draft in ("auto", MTP, f"lookup+{MTP}")
        kwargs["snapshots"] = self._snapshots(Path(path), draft, at_once, kwargs)
        self.target = TargetLlama(path, **kwargs)
        try:
            self._automatic = draft == "auto" and longest_draft(self.target) > 0
            self.parts: Parts = choose_parts(self.target, draft, companion)
            self.parts.remember(memory, self.target)
        except BaseException:
            self.target.close()
            raise

    def attention(self, n_seq: int, n_ctx: int, *, unified: bool) -> Attention:
        """What kind of attention to use for so many sequences of n_ctx cells, in one pool or in streams of their own."""
        params = self.target.context_params
        if not self.on_cpu or not self._flash:
            return Attention(bool(self._flash))
        free = self._flash == AUTO and not is_quantised(params.type_v)
        use = Use(n_ctx, params.n_threads, n_seq, unified, self.rows_asked[1] or params.n_ubatch)
        return attention_of(Path(self.target.model_path), use, None if free else True)

    @staticmethod
    def _snapshots(path: Path, draft: Any, at_once: int, kwargs: Mapping[str, Any]) -> int:
        """All that a draft can use where one is named, those that the memory allows where nobody asked for any."""
        if draft != "auto":
            return 0 if draft == "none" else SNAPSHOTS
        names = parse_devices(kwargs.get("devices"))
        return states_for(path, at_once, kwargs.get("n_gpu_layers", 0), names)

    @property
    def files(self) -> dict[str, Path]:
        """The model files by role."""
        files = {"target": Path(self.target.model_path), "draft": self.parts.draft}
        files |= {"companion": self.parts.companion}
        return {role: path for role, path in files.items() if path is not None}

    @property
    def _beside(self) -> list[Path]:
        """Draft and companion, those that there are."""
        return [path for path in (self.parts.draft, self.parts.companion) if path is not None]

    @property
    def sides(self) -> list[Side]:
        """Draft and companion, and what a step of each reads."""
        paths = self._beside
        sides = [Side(path, size_of(path)) for path in paths]
        if sides:
            reads = states_of(self.parts, self.target) is not None
            size = head_size(paths[0]) if self.parts.head else sides[0].size
            sides[0] = Side(paths[0], size, reads)
        return sides

    def known(self) -> tuple[CostCurve, Acceptance]:
        """The pair's profile, or a prior where it has none."""
        return beginnings(self.target, self.sides)

    def beside(self, placement: Placement) -> float:
        """Bytes of a position in the KV of draft and companion."""
        found = [cell_bytes(path, placement) for path in self._beside]
        if self.parts.head:  # a layer in the target's file
            found[0] /= int(llama_cpp.llama_model_n_layer(self.target.model))
        return sum(found)

    def held(self, cells: int, n_seq: int, placement: Placement) -> int:
        """Bytes of all weights, and of KV caches of so many cells for so many sequences."""
        sides = sum(side.size for side in self.sides)
        return sides + held_bytes(self.target, cells, n_seq, self.beside(placement))

    @property
    def on_cpu(self) -> bool:
        """Whether no layer of the target is offloaded."""
        return gpu_layers(self.target) == 0

    @property
    def must_draft(self) -> bool:
        """Whether drafts were asked for; those that `auto` stands for give way to streams, on a CPU."""
        drafts = self.parts.drafter is not None or self.parts.draft is not None
        return drafts and not (self._automatic and self.on_cpu)

    def close(self) -> None:
        """Free the target."""
        self.parts.close()
        self.target.close()


class Contexts:
    """An engine over `n_slots` sequences.

    n_ctx: positions a sequence may use. answering_rows: most rows of a decode while sequences answer. Raises NoMemory, and
    what `Assembly` raises; the next ones may be made then.
    """

    def __init__(
        self,
        models: Models,
        n_slots: int,
        n_ctx: int,
        layout: Layout,
        placement: Placement = Placement(),  # noqa: B008 - frozen
    ) -> None:
        self.n_slots, self.n_ctx, self.layout = n_slots, n_ctx, layout
        self.target = models.target
        self.drafter = models.parts.drafter
        attention = models.attention(n_slots, n_ctx, unified=not layout.each)
        own = self._replace_context(models.rows_asked, flash=attention.flash)
        self.n_batch = int(llama_cpp.llama_n_batch(own.ctx))
        self._n_ubatch = int(llama_cpp.llama_n_ubatch(own.ctx))
        fewer = attention.below_tile and n_slots < TILE - 1
        self.answering_rows = min(TILE - 1, self.n_batch) if fewer else self.n_batch
        self.assembly = Assembly(self.target, models.parts, placement, n_seq=n_slots, n_ctx=n_ctx)
        self.engine, self.loop = self.assembly.engine, self.assembly.loop

    @property
    def copied(self) -> dict[Role, Any]:
        """The contexts whose KV is worth keeping: a draft that reads the target's states needs only those of the last tokens."""
        sides = zip((Role.DRAFT, Role.COMPANION), self.assembly.models)
        found = {role: side.context for role, side in sides if not side.reads_states}
        return {Role.TARGET: self.target.ctx, **found}

    def fill_rows(self, n_answering: int) -> int:
        """Prompt tokens that the next decode takes: beside answers, as many as go through in one pass with them."""
        if n_answering:
            return min(self._n_ubatch, self.answering_rows) - n_answering
        return self.n_batch

    def draft_rows(self, n_answering: int, n_running: int, filled: int) -> int:
        """Drafted tokens that each of `n_answering` sequences may have beside `filled` prompt tokens.

        n_running: sequences that have a record, those that still read their prompt among them.
        """
        if self.layout.each and n_running > FEW:
            return 0  # unequal rows of streams fall apart into several passes
        return max(0, (self.answering_rows - filled) // max(1, n_answering) - 1)

    def _replace_context(self, rows_asked: tuple[int, int], *, flash: bool) -> Any:
        """Give the target a context for many sequences in place of the small one it was loaded with.

        rows_asked: n_batch and n_ubatch, 0 where not given.
        """
        target = self.target
        params = target.context_params
        params.n_ctx, params.n_seq_max = self.layout.cells, self.n_slots
        params.kv_unified = not self.layout.each
        params.flash_attn_type = flash_type(flash)
        # llama_cpp made them no larger than the small context
        n_batch, n_ubatch = rows_asked
        params.n_ubatch = n_ubatch or params.n_ubatch
        params.n_batch = max(params.n_ubatch, n_batch, _ROWS_A_SEQUENCE * self.n_slots)
        target._ctx.close()  # noqa: SLF001 - llama_cpp makes contexts for one sequence only
        try:
            target._ctx = internals.LlamaContext(  # noqa: SLF001
                model=target._model,  # noqa: SLF001
                params=params,
                verbose=target.verbose,
            )
        except ValueError as error:
            raise NoMemory(
                f"no memory for a context of {self.layout.cells} tokens",
                "lower --parallel, --max-tokens or -c",
            ) from error
        self._adapt()
        return target._ctx  # noqa: SLF001

    def _adapt(self) -> None:
        """Put a LoRA adapter on the new context, as the old one had it."""
        target = self.target
        adapter = target._lora_adapter  # noqa: SLF001
        if adapter is None:
            return
        adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (llama_cpp.llama_cpp.ctypes.c_float * 1)(target.lora_scale)
        if llama_cpp.llama_set_adapters_lora(target._ctx.ctx, adapters, 1, scales):  # noqa: SLF001
            raise EngineError(f"the LoRA adapter {target.lora_path} cannot be used")

    def close(self) -> None:
        """Free engine, draft and companion; the target's context goes with the target."""
        self.assembly.close()


def open_contexts(
    models: Models,
    n_slots: int,
    n_ctx: int,
    needs: Sequence[int],
    placement: Placement,
    *,
    most: int | None,
    **layouts: bool,
) -> Contexts:
    """Contexts for so many sequences, or for half as many, and so on, while they lack memory.

    most: KV cells that there is room for; None where it must be `n_slots`. layouts: as `lay_out` takes them. Raises NoMemory.
    """
    while True:
        layout = lay_out(n_slots, n_ctx, needs, **layouts)
        last = most is None or n_slots == 1
        try:
            if last or layout.cells <= (most or 0):
                return Contexts(models, n_slots, n_ctx, layout, placement)
        except NoMemory:
            if last:
                raise
        n_slots //= 2
        log.warning(
            "there is no memory for %d answers at once; %d run instead", 2 * n_slots, n_slots
        )
