"""What is asked of one answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

from pyspec.errors import OptionError
from pyspec.sampling.options import MAX_DRAFT, Coupling, Noise, Sampling, check_noise, check_ranges
from pyspec.sampling.verification import Margin, Strict, Verification, check_rule

if TYPE_CHECKING:
    from pyspec.draft.simple import LengthPolicy
    from pyspec.engine.round import Run
    from pyspec.engine.statistics import Tally
    from pyspec.sampling.chain import ProcessorHook
    from pyspec.text.answer import ReasoningLimit

_STRICT = Strict()

Drafting = Literal["all", "lookup", "model", "nothing"]
"""Which of the loaded drafters may draft."""


@dataclass(frozen=True)
class Speculation:
    """How one call speculates; None keeps the object's setting.

    Attributes:
        enabled: False decodes this call plainly.
        verification: The rule that accepts drafted tokens: `Strict()` or `Margin()`.
        length: How many drafted tokens are verified: "auto", "companion" or "fixed:K".
        draft_max: The longest draft, in tokens; more than 64 counts as 64.
        sampling: Whose random numbers draw tokens: "coupled" or "llama.cpp", see `Sampling`.

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
        if self.length not in (None, "auto"):
            from pyspec.draft.policies import parse_length  # noqa: PLC0415 - the default needs none

            parse_length(self.length)
        if self.verification is not None:
            check_rule(self.verification)

    @property
    def longest(self) -> int:
        """The longest allowed draft, in tokens."""
        if not self.enabled:
            return 0
        return MAX_DRAFT if self.draft_max is None else min(self.draft_max, MAX_DRAFT)


OFF = Speculation(enabled=False)
"""Decode this call plainly."""


@dataclass(frozen=True)
class AnswerOptions:
    """Everything requested of one answer, from the call down to the round."""

    sampling: Sampling = field(default_factory=Sampling)
    speculation: Speculation = field(default_factory=Speculation)
    max_tokens: int | None = None  # None or below 1 for as many as the context holds
    stop: Sequence[str] = ()  # strings that end the text; rounds do not know them
    goes_on: bool = False  # at max_tokens, without drafts, until its caller closes it
    grammar: Any = None
    logits_processor: Any = None
    keep_rows: bool = False  # keep the logits of emitted tokens
    prompt_rows: bool = False  # also the prompt's, which is then read again
    policy: LengthPolicy | None = None  # decides draft lengths; None for the object's own
    drafting: Drafting = "all"
    progress: Callable[[int, int], None] | None = None  # called as (done, total) in a long prompt
    reasoning: ReasoningLimit | None = None  # how long a chat's reasoning may be

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, (Integral, type(None))):
            raise OptionError(
                f"max_tokens is {self.max_tokens!r}",
                "use a whole number, or None for as many as fit",
            )

    @classmethod
    def of(cls, options: Sampling | AnswerOptions | None, **more: Any) -> AnswerOptions:
        """Combine a sampling, or options, with `more` fields of this class."""
        if isinstance(options, AnswerOptions):
            return replace(options, **more)
        return cls(**more) if options is None else cls(options, **more)

    def block(
        self, tally: Tally, report: Mapping[str, Any], drafts: tuple[str, str]
    ) -> dict[str, Any]:
        """The `speculation` block of a result, the same in every interface.

        report: a `speculation_report`. drafts: names of draft and companion.
        """
        draft, companion = drafts if self.speculation.enabled else ("none", "none")
        return {
            **tally.as_dict(),
            **self.sampling.published,
            "verification": self.rule.name,
            "draft": draft,
            "companion": companion,
            **report,
        }

    @property
    def rule(self) -> Verification:
        """The rule in force."""
        return _STRICT if self.shaped else self.speculation.verification or _STRICT

    def settled(self, own: Verification = _STRICT) -> AnswerOptions:
        """A copy with the rule `own` if none is named, and with a seed that can be reported if a random one was asked for."""
        named = self.speculation.verification or own
        speculation = replace(self.speculation, verification=named)
        return replace(self, speculation=speculation, sampling=self.sampling.seeded())

    def begin(
        self,
        tokens: Sequence[int],
        target: Any,
        hook: ProcessorHook | None = None,
    ) -> tuple[Run, Any]:
        """Make the `Run` of an answer, on sequence 0, and what `build_chain` makes, to be closed after it.

        hook: logits processors. Raises InputError or OptionError.
        """
        from pyspec._lib import address  # noqa: PLC0415 - --help needs no engine
        from pyspec.engine.handle import Gate  # noqa: PLC0415
        from pyspec.engine.round import UNLIMITED, Run  # noqa: PLC0415
        from pyspec.sampling.chain import build_chain  # noqa: PLC0415

        most, sampling, rule = self.max_tokens, self.sampling, self.rule
        budget = None if self.reasoning is None else self.reasoning.budget(target.speech, tokens)
        chain = build_chain(sampling, target, self.grammar, hook, tokens, budget)
        run = Run(
            0,
            list(tokens),
            Gate(rule, sampled=sampling.draw == "apart"),
            UNLIMITED if most is None or most < 1 else most,
            0 if chain is None else address(chain.sampler),
            self._coupling(rule),
            draft_max=self.speculation.longest,
            drafting=self.drafting,
            goes_on=self.goes_on,
            rows=[] if self.keep_rows else None,
            guide=chain.masks.masks if chain is not None and chain.masks is not None else None,
        )
        return run, chain

    def _coupling(self, rule: Verification) -> Coupling | None:
        """The noise; says so where the chain begins with its top-k."""
        if (noise := self.sampling.coupling) is None:
            return None
        first = self.sampling.temperature > 0.0 and not self.shaped
        top_k = max(0, self.sampling.top_k) if first else noise.top_k
        return noise._replace(top_k=top_k, tempered=not isinstance(rule, Margin))

    @property
    def shaped(self) -> bool:
        """Whether sampling uses changed rows instead of the raw ones, so that no token may be relaxed."""
        own = self.grammar or self.logits_processor or self.reasoning is not None
        return bool(own or self.sampling.shaped)
