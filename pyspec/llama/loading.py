"""What a `SpeculativeLlama` drafts with. It is imported when the first model is loaded: it brings the whole engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspec.draft.lengths import parse_length
from pyspec.engine.assembly import Assembly, choose_parts, may_use_head
from pyspec.engine.models import SideOptions
from pyspec.engine.profiles import PairMemory
from pyspec.engine.session import Session
from pyspec.engine.target import SNAPSHOTS


class Drafts:
    """Draft, companion and memory, by the constructor's arguments. Raises OptionError before anything is loaded.

    for_target: what the target's loading has to know of them.
    """

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._draft, self._companion, self._memory = own["draft"], own["companion"], own["memory"]
        self._options = SideOptions.of(
            own["draft_n_gpu_layers"], own["draft_devices"], (own["draft_type_k"], own["draft_type_v"]),
        )  # fmt: skip
        self._length = parse_length(own["length"])
        self.for_target = {
            "snapshots": 0 if self._draft == "none" else SNAPSHOTS,
            "head": may_use_head(self._draft),
        }

    def join(self, llm: Any) -> None:
        """Load them, and begin the session of `llm`."""
        parts = choose_parts(llm, self._draft, self._companion)
        parts.remember(self._memory)
        assembly = Assembly(llm, parts, self._options)
        llm._session = Session(assembly)  # noqa: SLF001 - it is closed with `llm` from here on
        llm.pair_memory = kept = PairMemory(llm, assembly.sides)
        kept.kept_by(llm)
        llm.policies = kept.begin(llm, assembly.sides, self._length)
        llm.curve, assembly.engine.temper = llm.policies.curve, kept.temper
        for note in assembly.notes:
            llm.note(note)
