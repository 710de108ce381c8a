"""The `speculation` block of a result, which tells what one answer did."""

from __future__ import annotations

from typing import Any

from pyspec.engine.assembly import Assembly
from pyspec.engine.session import Report
from pyspec.options import Speculation
from pyspec.policy.simple import LengthPolicy
from pyspec.rules import Verification


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
        "times_plain": times_plain(report, policy),
        "timings": report.timings.as_dict(),
    }


_FEWEST_ROWS, _FEWEST_TOKENS = 3, 16
"""Decodes of one row below which an unmeasured curve is not believed, and the shortest answer that says anything."""


def times_plain(report: Report, policy: LengthPolicy) -> float | None:
    """How many times as fast as without drafts an answer came, or None where that is not known.

    Plain decoding would have taken one row a token, at the depth each token had; the curve knows what a row costs there. Its
    own time outside decodes is left out, so the figure is a little too low rather than too high.
    """
    target, timings = policy.curve.target, report.timings
    known = target.measured or target.count(1) >= _FEWEST_ROWS
    if timings.tokens < _FEWEST_TOKENS or not known:
        return None
    ends = report.prompt_tokens, report.prompt_tokens + timings.tokens
    row = sum(target.table(depth)[1] for depth in ends) / len(ends)
    spent = timings.total_ms - timings.prefill_ms
    return round(row * timings.tokens / spent, 3) if spent > 0 else None
