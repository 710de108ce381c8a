"""What one call asks of speculation, and the block that tells what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspec.assemble import Assembly
from pyspec.engine.handle import MAX_DRAFT
from pyspec.engine.session import Report
from pyspec.errors import OptionError
from pyspec.policy.base import LengthPolicy
from pyspec.rules import Verification


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
        if self.draft_max is not None and self.draft_max < 0:
            raise OptionError(f"draft_max is {self.draft_max}", "use 0 or more")

    @property
    def longest(self) -> int:
        """The longest draft there may be, in tokens."""
        if not self.enabled:
            return 0
        return MAX_DRAFT if self.draft_max is None else min(self.draft_max, MAX_DRAFT)


OFF = Speculation(enabled=False)
"""Decode this call plainly."""


def result_block(
    assembly: Assembly,
    report: Report,
    policy: LengthPolicy,
    rule: Verification,
    speculation: Speculation,
) -> dict[str, Any]:
    """The `speculation` block of a result."""
    return {
        **report.tally.as_dict(),
        "draft": assembly.draft if speculation.enabled else "none",
        "companion": assembly.companion if speculation.enabled else "none",
        "verification": rule.name,
        "prompt_tokens": report.prompt_tokens,
        "prompt_kept": report.prompt_kept,
        "choice": policy.stats(),
        "timings": report.timings.as_dict(),
    }
