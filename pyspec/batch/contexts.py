"""Models and contexts of a batch: one target, draft and companion context for all sequences.

The contexts are unified: all sequences share one pool of KV cells, sized by what the records need,
and rows of sequences that differ in number go through one pass. A prefix that sequences share takes
its cells once. With one stream a sequence instead, a batch of unequal rows, or of sequences whose
numbers do not follow each other, falls apart into many: 16 at once gave 102 tokens a second where
the pool gives 215 (BF16, two cores).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import llama_cpp
from llama_cpp import _internals as internals

from pyspec.assemble import Parts, choose_parts, read_sidecar
from pyspec.engine.handle import Engine, Role
from pyspec.engine.loop import Equipment, Loop
from pyspec.engine.side import Placement, SideModel, address, can_roll_back
from pyspec.errors import EngineError, ModelInvalid
from pyspec.policy.learned import Learned
from pyspec.profiles import load_profile, prior_curve, prior_learned

if TYPE_CHECKING:
    from pyspec.policy.cost import CostCurve

MOST_SEQUENCES = 64
"""Cost curves end there."""

CELLS_STEP = 256
"""llama.cpp rounds contexts up to it."""

_SKIPPING_ROWS = 63
# under 64 rows ggml's flash attention on a CPU passes by the cells that a row does not see; from there on it computes whole
# tiles, seen or not: 150 prompt tokens beside 15 answers of 250 cells took 480 ms at once, 271 in decodes of 63 rows (BF16)

_ROWS_A_SEQUENCE = 72
# the engine gives each sequence n_batch / n rows for its draft, the longest draft aside


class Models:
    """The target as a `llama_cpp.Llama`, and what will draft for it; contexts come later.

    kwargs: as `llama_cpp.Llama` takes them. Raises ModelInvalid, ModelNotFound or UnsupportedModel.
    """

    def __init__(self, path: str, draft: Any, companion: str, **kwargs: Any) -> None:
        # attention then skips the cells of other sequences; without it each row would look at all of them
        kwargs = {"verbose": False, "flash_attn": True, **kwargs, "n_ctx": CELLS_STEP}
        try:
            self.target = llama_cpp.Llama(path, **kwargs)
        except ValueError as error:
            raise ModelInvalid(f"{path} could not be loaded: {error}") from error
        try:
            # measured: with many sequences a draft model costs more than it brings, and a coupled one makes the target give
            # logits of every prompt row; lookup costs nothing
            rolls_back = can_roll_back(self.target.model)
            word = "lookup" if draft == "auto" and rolls_back else draft
            self.parts: Parts = choose_parts(self.target, word, companion)
        except BaseException:
            self.target.close()
            raise

    @property
    def files(self) -> dict[str, Path]:
        """The model files by role."""
        files = {"target": Path(self.target.model_path), "draft": self.parts.draft}
        files |= {"companion": self.parts.companion, "sidecar": self.parts.sidecar}
        return {role: path for role, path in files.items() if path is not None}

    def believed(self) -> tuple[CostCurve, Learned]:
        """The pair's profile, or a prior where it has none."""
        sides = [path for path in (self.parts.draft, self.parts.companion) if path is not None]
        pair = SimpleNamespace(models=[SimpleNamespace(path=path) for path in sides])
        return load_profile(self.target, pair) or (
            prior_curve(self.target, pair),
            prior_learned(pair),
        )

    def close(self) -> None:
        """Free the target."""
        self.target.close()


class Contexts:
    """An engine over `n_slots` sequences and one more for a shared prefix.

    n_ctx: positions a sequence may use. cells: KV cells of each context, all sequences together.
    """

    def __init__(
        self, models: Models, n_slots: int, n_ctx: int, cells: int, gpu_layers: int | None
    ) -> None:
        self.n_slots, self.n_ctx = n_slots, n_ctx
        self.cells = -(-max(cells, n_ctx) // CELLS_STEP) * CELLS_STEP
        self.target, parts = models.target, models.parts
        self.drafter = parts.drafter
        self._sides: list[SideModel] = []
        self._own = self._replace_context()
        self.n_batch = int(llama_cpp.llama_n_batch(self._own.ctx))
        self.answering_rows = self._answering_rows()
        self.engine = Engine(n_slots + 1, self.target.n_vocab())
        try:
            self._attach(parts, Placement(n_gpu_layers=gpu_layers))
        except BaseException:
            self.close()
            raise
        equipment = Equipment(parts.drafter, parts.draft is not None, self.has_companion)
        self.loop = Loop(self.engine, equipment, n_ctx)

    @property
    def has_companion(self) -> bool:
        """Whether there is a companion."""
        return len(self._sides) > 1

    def _replace_context(self) -> Any:
        """Give the target a context for many sequences in place of the small one it was loaded with."""
        target = self.target
        params = target.context_params
        params.n_ctx, params.n_seq_max, params.kv_unified = self.cells, self.n_slots + 1, True
        params.n_batch = max(params.n_ubatch, _ROWS_A_SEQUENCE * (self.n_slots + 1))
        target._ctx.close()  # noqa: SLF001 - llama_cpp makes contexts for one sequence only
        try:
            target._ctx = internals.LlamaContext(  # noqa: SLF001
                model=target._model,  # noqa: SLF001
                params=params,
                verbose=target.verbose,
            )
        except ValueError as error:
            raise EngineError(
                f"no memory for a context of {self.cells} tokens",
                "lower --parallel, --max-tokens or -c",
            ) from error
        self._adapt()
        return target._ctx  # noqa: SLF001

    def _answering_rows(self) -> int:
        """Most rows of a decode while sequences answer."""
        on_cpu = (
            self.target.model_params.n_gpu_layers == 0 or not llama_cpp.llama_supports_gpu_offload()
        )
        skips = (
            on_cpu
            and self.target.context_params.flash_attn_type
            == llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        )
        return (
            min(_SKIPPING_ROWS, self.n_batch)
            if skips and self.n_slots < _SKIPPING_ROWS
            else self.n_batch
        )

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

    def _attach(self, parts: Parts, placement: Placement) -> None:
        self.engine.attach(Role.TARGET, address(self._own.ctx), address(self.target.model))
        for role, path in ((Role.DRAFT, parts.draft), (Role.COMPANION, parts.companion)):
            if path is not None:
                side = SideModel(path, self.target, placement, n_seq=self.n_slots + 1)
                self._sides.append(side)
                self.engine.attach(role, side.context, side.model)
        coupling = read_sidecar(parts, self.target)
        self.coupled = coupling is not None
        if coupling is not None:
            self.engine.couple(coupling.embeddings, coupling.w_h, coupling.w_s, coupling.window)

    def close(self) -> None:
        """Free the engine, then draft and companion; the target's context goes with the target."""
        self.engine.close()
        for side in self._sides:
            side.close()
        self._sides.clear()
