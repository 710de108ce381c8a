"""What one call asks for: of speculation, and altogether."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pyspec.engine.handle import MAX_DRAFT
from pyspec.policy.simple import LengthPolicy
from pyspec.ranges import check_ranges
from pyspec.rules import Verification
from pyspec.sampling import Sampling

Drafting = Literal["all", "lookup", "model", "nothing"]
"""Which of the drafters that are loaded may draft."""


@dataclass(frozen=True)
class Speculation:
    """How one call speculates; None keeps what the object was made with.

    enabled: False decodes this call plainly. length: `fixed:K`, `confidence:P`, `companion` or `auto`. draft_max: the
    longest draft, in tokens; more than 64 counts as 64.
    """

    enabled: bool = True
    verification: Verification | None = None
    length: str | None = None
    draft_max: int | None = None

    def __post_init__(self) -> None:
        check_ranges(vars(self))

    @property
    def longest(self) -> int:
        """The longest draft there may be, in tokens."""
        if not self.enabled:
            return 0
        return MAX_DRAFT if self.draft_max is None else min(self.draft_max, MAX_DRAFT)


OFF = Speculation(enabled=False)
"""Decode this call plainly."""


@dataclass(frozen=True)
class AnswerOptions:
    """Everything that one answer asks for, from the call down to the session.

    max_tokens: None or below 1 for as many as the context holds. goes_on: at max_tokens the answer does not end but goes
    on without drafts, until its caller closes it. keep_rows: keep the logits of emitted tokens; prompt_rows: of the prompt's
    too, which is then read anew. policy: what decides on draft lengths, None for the object's own. progress(done, total) is
    called while the prompt is read.
    """

    sampling: Sampling = field(default_factory=Sampling)
    speculation: Speculation = field(default_factory=Speculation)
    max_tokens: int | None = None
    goes_on: bool = False
    grammar: Any = None
    logits_processor: Any = None
    keep_rows: bool = False
    prompt_rows: bool = False
    policy: LengthPolicy | None = None
    drafting: Drafting = "all"
    progress: Callable[[int, int], None] | None = None

    @property
    def shaped(self) -> bool:
        """Whether rows that are sampled from are not the raw rows, so that no token may be relaxed."""
        return bool(self.grammar or self.logits_processor or self.sampling.shaped)
