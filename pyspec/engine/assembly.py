"""Builds what rounds need: a target's sequences and what drafts for them, for one sequence or many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp

from pyspec._lib import address
from pyspec.engine.handle import Engine, Role
from pyspec.engine.models import SideModel, SideOptions, longest_draft
from pyspec.engine.offload import PlacedModel
from pyspec.engine.profiles import SideFile
from pyspec.engine.round import Loop
from pyspec.engine.selection import Parts, states_of
from pyspec.engine.threads import Threads
from pyspec.errors import PyspecError
from pyspec.gguf.heads import States
from pyspec.hub.drafts import suggestion
from pyspec.machine.machine import Watch
from pyspec.sampling.limits import MAX_DRAFT

_AS_TARGET = SideOptions()


class Assembly:
    """The models beside a target, an engine over its context, and the loop over the engine's sequences.

    A draft model that was found automatically and cannot be used is replaced by the next one; `notes` say so.

    Args:
        target: a `llama_cpp.Llama`; its context is the caller's and must outlive this.
        n_seq: sequences of the target's context.
        n_ctx: positions that each sequence may use; the whole context by default.

    Attributes:
        models: the loaded models, draft first.

    Raises:
        DraftMismatch: a draft that was named, or a companion, has another vocabulary. Also raises what `SideModel` raises.
    """

    def __init__(
        self,
        target: Any,
        parts: Parts,
        options: SideOptions = _AS_TARGET,
        *,
        n_seq: int = 1,
        n_ctx: int | None = None,
    ) -> None:
        self._target, self._parts, self._options = target, parts, options
        self._n_seq, self.n_ctx = n_seq, target.n_ctx() if n_ctx is None else n_ctx
        self.models: list[SideModel] = []
        while not self._loads():
            pass
        self._open()

    def _loads(self) -> bool:
        """Load what the parts name. False if an automatically found draft cannot be used; the parts then hold the next one."""
        try:
            self._load()
        except BaseException as error:
            self._free()
            if not (isinstance(error, PyspecError) and self._parts.automatic):
                raise
            self._parts.leave_out(error.message)
            return False
        return True

    def _load(self) -> None:
        """Load draft and companion. Frees nothing on failure."""
        self._states = states_of(self._parts, self._target)
        self._add(self._parts.draft, self._states)
        self._add(self._parts.companion)

    def _add(self, path: Path | None, states: States | None = None) -> None:
        if path is not None:
            side = SideModel(
                path, self._target, self._options, self._n_seq, states, n_ctx=self.n_ctx
            )
            self.models.append(side)

    def _open(self) -> None:
        """Make the engine. Frees the models on failure."""
        self.engine = Engine(self._n_seq, self._target.n_vocab())
        try:
            self._attach()
        except BaseException:
            self.close()  # the exception keeps the engine alive for longer than the contexts
            raise
        self.loop = Loop(
            self.engine,
            self.n_ctx,
            drafter=self._parts.drafter,
            draft_model=bool(self.models),
            draft_longest=(self._states and self._states.longest) or MAX_DRAFT,
            companion=len(self.models) > 1,
            n_batch=int(llama_cpp.llama_n_batch(self._target.ctx)),
            longest=longest_draft(self._target),
            threads=self._threads(),
        )

    def _threads(self) -> Threads | None:
        """Make what adapts the threads; None if the user gave their number."""
        if not getattr(self._target, "adapts_threads", False):
            return None
        contexts = [self._target.ctx, *(model.context for model in self.models)]
        return Threads(contexts, int(self._target.n_threads), Watch(near=True))

    def _attach(self) -> None:
        target = self._target
        owners = target._ctx, target._model  # noqa: SLF001 - not the target: it may own this object
        self.engine.attach(Role.TARGET, address(target.ctx), address(target.model), *owners)
        for role, side in zip((Role.DRAFT, Role.COMPANION), self.models):
            self.engine.attach(role, side.context, side.model, side)
        if self._states is not None:
            self.engine.read_states(self._states)
        target._stack.callback(self.engine.detach)  # noqa: SLF001 - it may be freed before the engine is

    @property
    def draft(self) -> str:
        """The draft's name in results."""
        return self._parts.names[0]

    @property
    def companion(self) -> str:
        """The companion's name in results."""
        return self._parts.names[1]

    @property
    def notes(self) -> list[str]:
        """What was left out or done differently than asked, and why."""
        return self._parts.notes

    def hint(self) -> str:
        """A suggestion for after an answer that had only lookup because no draft was found; empty on later calls."""
        alone, self._parts.lookup_alone = self._parts.lookup_alone, False
        return suggestion(Path(self._target.model_path)) if alone else ""

    @property
    def sides(self) -> list[SideFile]:
        """The files of the models, and the bytes that a step of each reads."""
        return self._parts.sides(reads_states=self._states is not None)

    @property
    def placed(self) -> list[PlacedModel]:
        """Where the layers of draft and companion were meant to go."""
        return [model.placed for model in self.models]

    def close(self) -> None:
        """Free the engine, then the models; may be called twice."""
        self.engine.close()
        self._free()

    def _free(self) -> None:
        for model in self.models:
            model.close()
        self.models.clear()
