"""What one call asks for, of speculation and altogether, and the `speculation` block that its result has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from threading import local
from types import MappingProxyType
from typing import Any, Literal

from pyspec.engine.assembly import Assembly
from pyspec.engine.handle import MAX_DRAFT, Gate
from pyspec.engine.models import address
from pyspec.engine.runs import Run
from pyspec.engine.session import UNLIMITED, Report
from pyspec.limits import check_ranges
from pyspec.noise import Noise, check_noise
from pyspec.policy.lengths import parse_length
from pyspec.policy.simple import LengthPolicy
from pyspec.rules import Strict, Verification, check_rule, rule_at
from pyspec.sampling import Sampling
from pyspec.tokens import Tally

_STRICT = Strict()

MORE_SAMPLERS = tuple(
    each.name for each in fields(Sampling) if each.name.startswith(("dry_", "xtc_", "dynatemp_"))
)
"""What `Sampling` has beyond the arguments of llama-cpp-python, by name."""

Drafting = Literal["all", "lookup", "model", "nothing"]
"""Which of the drafters that are loaded may draft."""


@dataclass(frozen=True)
class Speculation:
    """How one call speculates; None keeps what the object was made with.

    enabled: False decodes this call plainly. length: `fixed:K`, `confidence:P`, `companion` or `auto`. draft_max: the
    longest draft, in tokens; more than 64 counts as 64. sampling: whose random numbers draw tokens, see `Sampling.noise`.
    """

    enabled: bool = True
    verification: Verification | None = None
    length: str | None = None
    draft_max: int | None = None
    sampling: Noise | None = None

    def __post_init__(self) -> None:
        check_ranges(vars(self))
        check_noise(self.sampling)
        if self.length is not None:
            parse_length(self.length)
        if self.verification is not None:
            check_rule(self.verification)

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

    @staticmethod
    def plain_block() -> dict[str, Any]:
        """The `speculation` block of an answer that llama-cpp-python itself makes, as with `logits_all`."""
        names = {"draft": "none", "companion": "none", "verification": "strict"}
        return {**Tally().as_dict(), **names}

    def block(self, tally: Tally, rule: Verification | None = None) -> dict[str, Any]:
        """What the `speculation` block of a result says at every door; rule: the one in force, where it is not the call's own."""
        name = (rule or self.rule()).name
        return {**tally.as_dict(), **self.sampling.published, "verification": name}

    def rule(self, own: Verification = _STRICT) -> Verification:
        """The rule in force; own: where the call names none."""
        asked = self.speculation.verification or own
        if self.shaped:
            return _STRICT
        return rule_at(asked, self.sampling.temperature)

    def run(self, tokens: Sequence[int], chain: Any, own: Verification = _STRICT) -> Run:
        """The answer as rounds have it, on sequence 0; chain: what `build_chain` made of the sampling and the grammar."""
        most, sampling = self.max_tokens, self.sampling
        return Run(
            0,
            list(tokens),
            Gate(self.rule(own), sampled=sampling.draw == "apart"),
            UNLIMITED if most is None or most < 1 else most,
            0 if chain is None else address(chain.sampler),
            sampling.coupling,
            draft_max=self.speculation.longest,
            drafting=self.drafting,
            goes_on=self.goes_on,
            rows=[] if self.keep_rows else None,
        )

    @property
    def shaped(self) -> bool:
        """Whether rows that are sampled from are not the raw rows, so that no token may be relaxed."""
        return bool(self.grammar or self.logits_processor or self.sampling.shaped)


@dataclass
class Completion:
    """What one of llama-cpp-python's completions asks for beyond what its loop hands to `generate`.

    That loop throws away the text of a generator which ends before it asked for the end, unless a stopping criterion wants
    to stop there. So this stands for the call's own `criteria`, and wants to where the answer ended by itself.
    hears: is told each token, and says whether the answer ends with it.
    """

    options: AnswerOptions
    criteria: Any
    hears: Callable[[int], bool] | None = None
    reason: str | None = None
    """Why the answer ended; None where llama-cpp-python knows it."""
    began: bool = False
    """Whether its own `generate` was called; what works for it, such as a drafter, may call another."""

    def ends(self, token: int, ids: Any, logits: Any) -> bool:
        """Whether the answer ends with this token, before which the text is `ids`."""
        if self.hears is not None and self.hears(token):
            self.reason = "stop"
            return True
        return self.criteria is not None and bool(self.criteria(ids, logits))

    def __call__(self, ids: Any, logits: Any) -> bool:
        """Whether to stop here."""
        wanted = self.criteria is not None and self.criteria(ids, logits)
        return bool(wanted) or self.reason is not None


class InForce(local):
    """What holds for the call that this thread is in."""

    speculation = Speculation()
    samplers: Mapping[str, Any] = MappingProxyType(
        {}
    )  # of `MORE_SAMPLERS`, those that were asked for
    hears: Callable[[int], bool] | None = None
    completion: Completion | None = None  # whose loop runs


# -- the block of a result ---------------------------------------------------------------------------------------------


def result_block(
    assembly: Assembly,
    report: Report,
    policy: LengthPolicy,
    rule: Verification,
    options: AnswerOptions,
    measured: bool = False,
) -> dict[str, Any]:
    """The `speculation` block of a result. measured: whether the rule is what a verdict of the pair allows."""
    plain = plain_speed(report, policy)
    return {
        **options.block(report.tally, rule),
        "draft": assembly.draft if options.speculation.enabled else "none",
        "companion": assembly.companion if options.speculation.enabled else "none",
        "rule_measured": measured,
        "prompt_tokens": report.prompt_tokens,
        "prompt_kept": report.prompt_kept,
        "choice": policy.stats(),
        "times_plain": times_plain(report, plain),
        "plain": None if plain is None else plain.as_dict(),
        "timings": report.timings.as_dict(),
    }


@dataclass(frozen=True)
class PlainSpeed:
    """What decoding without drafts would have taken for a token of an answer, ms, and how that is known.

    source: `curve`, the cost of a row at the answer's depth on this machine, times how slow the machine was in this answer;
    `rounds`, those of this answer in which nothing was drafted.
    """

    ms: float
    source: Literal["curve", "rounds"]

    def as_dict(self) -> dict[str, Any]:
        """As results have it."""
        return {"tokens_per_second": round(1000.0 / self.ms, 2), "from": self.source}


_FEWEST = 3
"""Decodes of one row below which a curve that was not measured, or the rounds of an answer, say nothing."""


def plain_speed(report: Report, policy: LengthPolicy) -> PlainSpeed | None:
    """How fast plain decoding would have been in place of an answer, or None where nothing was measured to tell.

    It would have taken one row a token, at the depth each token had; the curve knows what a row costs there, and by what the
    rounds of this answer took against it, how slow the machine was meanwhile: both sides of a factor are of the same minute.
    What plain decoding takes beside decodes is known from the rounds of it that there were.
    """
    target, choice = policy.curve.target, policy.stats()
    if target.measured or target.count(1) >= _FEWEST:
        ends = report.prompt_tokens, report.prompt_tokens + report.timings.tokens
        table = [sum(times) / len(ends) for times in zip(*map(target.table, ends))]
        ms = table[1] * _slowness(table, choice) + policy.plain_aside.ms
        return PlainSpeed(ms, "curve") if ms > 0.0 else None
    if choice.get("rounds_plain", 0) >= _FEWEST and choice["ms_plain"]:
        return PlainSpeed(choice["ms_plain"] / choice["rounds_plain"], "rounds")
    return None


def times_plain(report: Report, plain: PlainSpeed | None) -> float | None:
    """How many times as fast as without drafts an answer came, or None where that is not known."""
    timings = report.timings
    spent = timings.total_ms - timings.prefill_ms
    known = plain is not None and timings.tokens > 0 and spent > 0
    return round(plain.ms * timings.tokens / spent, 3) if plain is not None and known else None


def _slowness(table: Sequence[float], choice: Mapping[str, Any]) -> float:
    """What the target's decodes took, in units of what the curve says of rounds of their lengths; 1 where nothing is known.

    table[n]: what the curve says of n rows, in ms.
    """
    lengths = {n: count for n, count in choice["rounds_by_length"].items() if n < len(table) - 1}
    said = sum(count * table[n + 1] for n, count in lengths.items())
    if not said or sum(lengths.values()) < choice["rounds"] or not choice["ms_target"]:
        return 1.0
    return float(choice["ms_target"] / said)
