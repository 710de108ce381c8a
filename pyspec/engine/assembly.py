"""Chooses what drafts for a target, and builds what rounds need of it, for one sequence or many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp

from pyspec._lib import address
from pyspec.draft.lookup import Drafter, ForeignDrafter, LookupDrafter, Memory
from pyspec.engine.handle import Engine, Role
from pyspec.engine.models import SideModel, SideOptions, longest_draft, rows_at_once
from pyspec.engine.offload import PlacedModel
from pyspec.engine.profiles import SideFile
from pyspec.engine.round import Loop
from pyspec.errors import OptionError, PyspecError, UnsupportedModel
from pyspec.gguf.kinds import (
    MTP,
    States,
    TargetShape,
    head_size,
    kind_of_draft,
    n_heads,
    read_states,
    unused_heads,
)
from pyspec.hub.drafts import drafts_here, offers_for
from pyspec.hub.fetch import cached
from pyspec.hub.locate import resolve
from pyspec.machine.files import size_of
from pyspec.machine.machine import Watch
from pyspec.machine.others import file_name_of, name_of
from pyspec.sampling.options import MAX_DRAFT

# -- what drafts, not yet loaded ---------------------------------------------------------------------------------------


@dataclass
class Parts:
    """What will draft: a Python drafter, a draft GGUF, a companion GGUF."""

    drafter: Drafter | None = None
    draft: Path | None = None
    companion: Path | None = None
    notes: list[str] = field(default_factory=list)  # what is done otherwise than asked, and why
    automatic: bool = False  # the draft was chosen automatically: one of `others` may replace it
    head: bool = False  # the draft is the target's own next-token head, in the target's file
    left_out: list[str] = field(default_factory=list)  # drafts of no use here, with reasons
    others: Iterator[Parts] = field(default_factory=lambda: iter(()))  # to try, in turn

    @property
    def names(self) -> tuple[str, str]:
        """Names of draft and companion in results."""
        named = [self.drafter.name] if self.drafter else []
        name = MTP if self.head else name_of(self.draft) if self.draft else ""
        named += [name] if name else []
        return "+".join(named) or "none", name_of(self.companion) if self.companion else "none"

    @property
    def reads_states(self) -> bool:
        """Whether the draft reads the target's states."""
        return self.head or (self.draft is not None and bool(kind_of_draft(self.draft)))

    @property
    def sides(self) -> list[SideFile]:
        """Draft and companion as far as there are any, and the bytes that a step of each reads."""
        size = head_size if self.head else size_of
        draft = [SideFile(self.draft, size(self.draft), self.reads_states)] if self.draft else []
        other = [SideFile(self.companion, size_of(self.companion))] if self.companion else []
        return [*draft, *other]

    def remember(self, memory: bool) -> None:
        """Let lookup draft from all texts of this process, not only from the current one. Raises OptionError for a folder."""
        if not isinstance(memory, bool):
            raise OptionError(
                f"memory is {memory!r}", "give True or False; earlier texts stay in this process"
            )
        if memory and isinstance(self.drafter, LookupDrafter):
            self.drafter.memory = Memory()

    def leave_out(self, reason: str) -> None:
        """Replace the draft with the next one that `auto` would take; the last one is lookup alone."""
        name = (
            "its next-token head" if self.head else file_name_of(self.draft) if self.draft else ""
        )
        self.left_out.append(f"{name} ({reason})")
        following = next(self.others)
        self.draft, self.companion = following.draft, following.companion
        self.head, self.automatic = following.head, following.automatic
        self.notes = [
            f"not used as drafts for this model: {', '.join(self.left_out)}",
            *following.notes,
        ]


def may_use_head(draft: Any) -> bool:
    """Return whether the user's word for the draft includes the target's own next-token head, which loads with the target."""
    return draft in ("auto", MTP, f"lookup+{MTP}")


def choose_parts(target: Any, draft: Any, companion: str | Path) -> Parts:
    """Turn the user's words into parts, without loading anything."""
    if not longest_draft(target):
        return _plain_only(target, draft)
    if isinstance(draft, Drafter):
        return Parts(drafter=draft)
    if isinstance(draft, llama_cpp.llama_speculative.LlamaDraftModel):
        return Parts(drafter=ForeignDrafter(draft))
    if not isinstance(draft, (str, Path)):
        raise OptionError(
            f"draft is {type(draft).__name__}",
            "give a name, a path, a Drafter or a LlamaDraftModel",
        )
    if not isinstance(companion, (str, Path)):
        raise OptionError(f"companion is {companion!r}", "give a name, a path, auto or none")
    companion = str(companion)
    if draft == "auto":
        others = _automatic(target, companion)
        parts = next(others)
        parts.others = others
        return parts
    parts = _named(target, str(draft))
    if parts.draft is not None:
        _add_companion(parts, target, companion)
    elif companion not in ("auto", "none"):
        parts.notes.append("a companion needs a draft model to judge; it is not used")
    return parts


def _plain_only(target: Any, draft: Any) -> Parts:
    reason = f"{file_name_of(Path(target.model_path))} is recurrent or hybrid: its memory cannot be rolled back"
    if draft == "none":
        return Parts()
    if draft != "auto" and not getattr(target, "where_possible", False):
        raise UnsupportedModel(f"{reason}, so nothing can be drafted for it", "use draft 'none'")
    return Parts(notes=[f"{reason}; decoding plainly"])


def _named(target: Any, draft: str) -> Parts:
    if draft == "none":
        return Parts()
    front, plus, name = draft.partition("+")
    parts = Parts(drafter=LookupDrafter() if front == "lookup" else None)
    if plus or parts.drafter is None:
        _add_draft(parts, target, name if parts.drafter else draft)
    return parts


def _automatic(target: Any, companion: str) -> Iterator[Parts]:
    """Best first: the target's own head, what is made for it, what is here and fits; lookup alone comes last."""
    path = Path(target.model_path)
    if target.has_head:
        yield _found(target, MTP, companion)
    for entry in offers_for(path, "draft"):
        here = cached(entry)
        if here:
            yield _found(target, entry.name, companion)
    for found in drafts_here(path):
        note = f"drafting with {found.name} ({found.origin}); --draft lookup turns it off"
        yield _found(target, str(found.path), companion, note)
    yield Parts(drafter=LookupDrafter())


def _found(target: Any, name: str, companion: str, note: str = "") -> Parts:
    parts = Parts(drafter=LookupDrafter(), automatic=True, notes=[note] if note else [])
    _add_draft(parts, target, name)
    _add_companion(parts, target, companion)
    return parts


def _add_draft(parts: Parts, target: Any, name: str) -> None:
    if name == MTP:
        if not target.has_head:
            path = Path(target.model_path)
            why = unused_heads(path) or "it has no next-token head (MTP) of a known kind"
            raise UnsupportedModel(f"{file_name_of(path)}: {why}", "use another draft")
        parts.draft, parts.head = Path(target.model_path), True
        return
    parts.draft = resolve(name)


def _add_companion(parts: Parts, target: Any, companion: str) -> None:
    if companion == "auto":
        found = offers_for(Path(target.model_path), "companion")
        parts.companion = resolve(found[0].name) if found else None
    elif companion != "none":
        parts.companion = resolve(companion)
    if parts.draft and parts.companion and parts.draft.samefile(parts.companion):
        parts.notes.append(
            "the companion is the draft itself and has nothing to add; it is not used"
        )
        parts.companion = None


def states_of(parts: Parts, target: Any) -> States | None:
    """How the draft reads the target's states; None for one that does not. Called before the draft is loaded.

    Raises DraftMismatch or UnsupportedModel where the two do not fit, ModelInvalid for a damaged file.
    """
    if parts.draft is None or not parts.reads_states:
        return None
    if not parts.head:
        shape = TargetShape(
            target.metadata["general.architecture"],
            llama_cpp.llama_model_n_layer(target.model),
            target.n_embd(),
            target.n_vocab(),
        )
        return read_states(parts.draft, shape)
    width = llama_cpp.llama_model_n_embd_out(target.model)
    return States(MTP, width, width, inside=True, heads=n_heads(parts.draft))


# -- loaded ------------------------------------------------------------------------------------------------------------


class Assembly:
    """The models beside a target, an engine over its context, and the loop over the engine's sequences.

    A draft model that was found automatically and cannot be used is replaced by the next one of `parts`, whose notes say so.

    Args:
        target: a `llama_cpp.Llama`; its context is the caller's and must outlive this.
        n_seq: sequences of the target's context.
        n_ctx: positions that each sequence may use; the whole context by default.

    Attributes:
        models: the loaded models, draft first.
        threads: what adapts them; None if the user gave their number.

    Raises:
        DraftMismatch: a draft that was named, or a companion, has another vocabulary. Also raises what `SideModel` raises.
    """

    def __init__(
        self,
        target: Any,
        parts: Parts,
        options: SideOptions = SideOptions(),  # noqa: B008 - frozen
        *,
        n_seq: int = 1,
        n_ctx: int | None = None,
    ) -> None:
        self._target, self.parts, self._options = target, parts, options
        self._n_seq, self.n_ctx = n_seq, target.n_ctx() if n_ctx is None else n_ctx
        self.models: list[SideModel] = []
        while not self._loads():
            pass
        self._open()

    def _loads(self) -> bool:
        """Load what the parts name. False if an automatically found draft cannot be used; the parts then hold the next one."""
        try:
            self._states = states_of(self.parts, self._target)
            self._add(self.parts.draft, self._states)
            self._add(self.parts.companion)
        except BaseException as error:
            self._free()
            if not (isinstance(error, PyspecError) and self.parts.automatic):
                raise
            self.parts.leave_out(error.message)
            return False
        return True

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
        contexts = [self._target.ctx, *(model.context for model in self.models)]
        self.threads = None
        if self._target.adapts_threads:
            self.threads = Threads(contexts, int(self._target.n_threads), Watch(near=True))
        self.loop = Loop(
            self.engine,
            self.n_ctx,
            drafter=self.parts.drafter,
            draft_model=bool(self.models),
            draft_longest=(self._states and self._states.longest) or MAX_DRAFT,
            companion=len(self.models) > 1,
            n_batch=rows_at_once(self._target),
            longest=longest_draft(self._target),
            adapt_threads=None if self.threads is None else self.threads.adapt,
        )

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


# -- threads -----------------------------------------------------------------------------------------------------------

# ggml's threads wait for each other after every operation of a model's graph, and they spin while waiting. A thread without a
# processor keeps all others waiting for a scheduler time slice of some milliseconds, hundreds of times per token. One thread too
# few makes decoding a little slower; one too many, about ten times (bench/results/busy).

EVERY_S = 0.15
"""Seconds between two looks at the processors: their clocks tick every 10 ms."""

SLACK = 0.25
"""Processors that others may take before a thread gives way: a system is never quite idle."""

_SURE = 2  # consecutive looks that must agree: a short-lived child of this process is over sooner


def threads_beside(most: int, processors: int, others: float) -> int:
    """Threads, 1 to `most`, that find a processor each while other programs take this many processors."""
    return max(1, min(most, processors - ceil(others - SLACK)))


class Threads:
    """The threads of some llama.cpp contexts: `most`, or fewer while others need processors.

    contexts: as llama_cpp has them; they must outlive this.
    """

    def __init__(self, contexts: Sequence[Any], most: int, load: Watch) -> None:
        self._contexts, self._most = contexts, most
        self._load = load
        """The processors' load since the last look."""
        self.n = most
        self._next = 0.0
        self._waiting = 0

    def adapt(self) -> bool:
        """Use as many threads as fit, if it is time to look again; returns whether their number changed."""
        now = perf_counter()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        fit = threads_beside(self._most, self._load.processors, self._load.others())
        self._waiting = self._waiting + 1 if fit != self.n else 0
        if self._waiting < _SURE:
            return False
        self.n, self._waiting = fit, 0
        for context in self._contexts:
            llama_cpp.llama_set_n_threads(context, fit, fit)
        return True
