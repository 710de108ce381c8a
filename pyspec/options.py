"""What one call asks for, of speculation and altogether."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from threading import local
from types import MappingProxyType
from typing import Any, Literal

from pyspec.account import Tally
from pyspec.engine.handle import MAX_DRAFT, Gate
from pyspec.engine.models import address
from pyspec.engine.runs import Run
from pyspec.engine.session import UNLIMITED
from pyspec.limits import check_ranges
from pyspec.noise import Noise, check_noise
from pyspec.policy.lengths import parse_length
from pyspec.policy.simple import LengthPolicy
from pyspec.rules import Margin, PairRule, Strict, Verification, check_rule, rule_at
from pyspec.sampling import Sampling

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

    Attributes:
        enabled: False decodes this call plainly.
        verification: The rule that accepts drafted tokens: `Strict()` or `Margin()`.
        length: How many drafted tokens are verified: "auto", "companion", "confidence:P" or "fixed:K".
        draft_max: The longest draft, in tokens; more than 64 counts as 64.
        sampling: Whose random numbers draw tokens, "coupled" or "llama.cpp", see `Sampling`.

    Raises:
        OptionError: A value is outside its range.
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

    max_tokens: None or below 1 for as many as the context holds. stop: strings that end the text; rounds do not know of them.
    goes_on: at max_tokens the answer does not end but goes on without drafts, until its caller closes it. keep_rows: keep the
    logits of emitted tokens; prompt_rows: of the prompt's too, which is then read anew. policy: what decides on draft
    lengths, None for the object's own. progress(done, total) is called while the prompt is read.
    """

    sampling: Sampling = field(default_factory=Sampling)
    speculation: Speculation = field(default_factory=Speculation)
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    goes_on: bool = False
    grammar: Any = None
    logits_processor: Any = None
    keep_rows: bool = False
    prompt_rows: bool = False
    policy: LengthPolicy | None = None
    drafting: Drafting = "all"
    progress: Callable[[int, int], None] | None = None

    @classmethod
    def of(cls, asked: Sampling | AnswerOptions | None, **more: Any) -> AnswerOptions:
        """The whole of what is asked by a sampling, or by options, and by `more` fields of this."""
        if isinstance(asked, AnswerOptions):
            return replace(asked, **more)
        return cls(**more) if asked is None else cls(asked, **more)

    def block(
        self,
        tally: Tally,
        settled: Mapping[str, Any],
        drafts: tuple[str, str],
        own: Verification = _STRICT,
    ) -> dict[str, Any]:
        """The `speculation` block of a result, the same at every door.

        settled: what `pyspec.account.settled` says. drafts: names of what drafts and judges. own: the rule where the call names
        none.
        """
        rule, asked = self.rule(own), self.speculation.verification or own
        draft, companion = drafts if self.speculation.enabled else ("none", "none")
        return {
            **tally.as_dict(),
            **self.sampling.published,
            "verification": rule.name,
            "draft": draft,
            "companion": companion,
            "rule_measured": isinstance(asked, PairRule) and isinstance(rule, Margin),
            **settled,
        }

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
    )  # those of `MORE_SAMPLERS` that were asked for
    hears: Callable[[int], bool] | None = None
    completion: Completion | None = None  # whose loop runs
