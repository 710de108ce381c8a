"""A session and the models it is made of: loads what `parts` found, and joins it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspec.drafters import TranslatedDrafter
from pyspec.engine.models import Placement, SideModel
from pyspec.engine.parts import Parts, choose_parts, states_of
from pyspec.engine.session import Session
from pyspec.errors import DraftMismatch, PyspecError
from pyspec.offload import AUTO, Placed
from pyspec.profiles import Side
from pyspec.store.drafts import States


@dataclass
class Assembly:
    """A session and what it was made of; `close` frees what `assemble` loaded.

    draft and companion are the names that results report; models are the loaded ones, draft first; notes say what was left
    out, and why.
    """

    session: Session
    draft: str
    companion: str
    notes: list[str] = field(default_factory=list)
    models: list[SideModel | TranslatedDrafter] = field(default_factory=list)

    @property
    def sides(self) -> list[Side]:
        """The files of the models, and what a step of each reads."""
        return [Side(model.path, model.size, model.reads_states) for model in self.models]

    @property
    def placed(self) -> list[Placed]:
        """Where the layers of draft and companion were to go."""
        return [model.placed for model in self.models]

    @property
    def has_companion(self) -> bool:
        """Whether a companion is loaded."""
        return self.companion != "none"

    def close(self) -> None:
        """Free the session, then the models."""
        self.session.close()
        for model in self.models:
            model.close()
        self.models.clear()


_AS_TARGET = Placement()


def assemble(
    target: Any, draft: Any, companion: str, placement: Placement = _AS_TARGET
) -> Assembly:
    """Load what drafts for `target` (a `llama_cpp.Llama`) and join it to a session.

    draft: see `SpeculativeLlama`; one of another vocabulary is translated. Raises DraftMismatch for a companion of another
    vocabulary, UnsupportedModel where the target's memory cannot be rolled back and a draft was asked for by name.
    """
    parts = choose_parts(target, draft, companion)
    try:
        return _assembled(parts, target, placement)
    except PyspecError as error:
        if not parts.automatic or parts.draft is None:
            raise
        parts.notes = [
            f"{parts.draft.name} is here and cannot draft for this model: {error.message}"
        ]
        parts.draft = parts.companion = None
        return _assembled(parts, target, placement)


def _assembled(parts: Parts, target: Any, placement: Placement) -> Assembly:
    models: list[SideModel | TranslatedDrafter] = []
    states = states_of(parts, target)
    draft: SideModel | TranslatedDrafter | None
    try:
        draft = _load(parts.draft, target, placement, models, states)
    except DraftMismatch as error:
        if parts.draft is None or states is not None or parts.automatic:
            raise
        draft = _translated(parts, target, placement, models, error)
    try:
        companion = _load(parts.companion, target, placement, models)
        behind_text = draft if isinstance(draft, TranslatedDrafter) else None
        side = draft if isinstance(draft, SideModel) else None
        session = Session(target, parts.drafter, side, companion, states, behind_text)
    except BaseException:
        for model in models:
            model.close()
        raise
    return Assembly(session, *parts.names, parts.notes, models)


def _translated(
    parts: Parts,
    target: Any,
    placement: Placement,
    models: list[SideModel | TranslatedDrafter],
    error: DraftMismatch,
) -> TranslatedDrafter:
    """A draft of another vocabulary, behind text; the companion would not understand what it says, so it is left out."""
    assert parts.draft is not None  # noqa: S101 - for the type checker
    own, layers = target.model_params, placement.n_gpu_layers
    if layers is None:
        layers = AUTO if target.fits_itself else own.n_gpu_layers
    named = target.devices if placement.devices is None else placement.devices
    drafter = TranslatedDrafter(
        parts.draft,
        target,
        n_gpu_layers=layers,
        devices=named,
        split_mode=own.split_mode,
        main_gpu=own.main_gpu if named == target.devices else 0,
        tensor_split=target.tensor_split if named == target.devices else None,
        n_threads=placement.n_threads or target.n_threads,
        flash_attn=True,
        trust=target.trust,
    )
    models.append(drafter)
    parts.companion, parts.translated = None, True
    parts.notes.append(f"{error.message}; so its drafts are translated through text")
    return drafter


def _load(
    path: Path | None,
    target: Any,
    placement: Placement,
    models: list[SideModel | TranslatedDrafter],
    states: States | None = None,
) -> SideModel | None:
    if path is None:
        return None
    model = SideModel(path, target, placement, states=states)
    models.append(model)
    return model
