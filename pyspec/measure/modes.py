"""What is compared: mode strings, and one loaded model that serves them all.

A mode is parts joined by `+`, in any order, each setting one thing:

    plain                     no speculation
    strict | margin[/K=V...]  the rule; K is theta, gap, cap, budget or lookup (0: lookup is never relaxed)
    fixed:K | confidence:P | companion | auto    the draft length
    lookup | model | nothing  what drafts: prompt lookup alone, the draft model alone, no drafter;
                              both where not said

    plain   strict   margin   fixed:4+strict   lookup+strict   margin/gap=2.5/theta=0.84
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspec.errors import OptionError
from pyspec.llama import Speculation
from pyspec.options import Drafting
from pyspec.policy.lengths import parse_length
from pyspec.rules import Margin, Strict

if TYPE_CHECKING:
    from pyspec.llama import SpeculativeLlama
    from pyspec.policy.cost import CostCurve
    from pyspec.policy.simple import LengthPolicy
    from pyspec.rules import Verification

_ALL: Drafting = "all"
_HINT = "modes look like plain, strict, margin/gap=0.5, fixed:4+strict, lookup+margin"
_DRAFTING: dict[str, Drafting] = {"lookup": "lookup", "model": "model", "nothing": "nothing"}


@dataclass(frozen=True)
class Mode:
    """One way to answer. drafting: what may draft of all that is loaded."""

    name: str
    rule: Verification
    length: str = "auto"
    drafting: Drafting = "all"
    enabled: bool = True

    @property
    def exact(self) -> bool:
        """Whether greedy answers must equal those of plain decoding."""
        return not self.enabled or isinstance(self.rule, Strict) or self.rule.closed

    @property
    def speculation(self) -> Speculation:
        """The mode as per-call options."""
        return Speculation(enabled=self.enabled, verification=self.rule, length=self.length)


def parse_modes(text: str) -> list[Mode]:
    """Comma-separated modes, each once. Raises OptionError."""
    modes = [parse_mode(part) for part in text.split(",") if part.strip()]
    names = [mode.name for mode in modes]
    if not modes or len(set(names)) < len(names):
        raise OptionError("name at least one mode, and each once", _HINT)
    return modes


def parse_mode(text: str) -> Mode:
    """One mode; see the module's text. Raises OptionError."""
    name = text.strip().lower()
    if name == "plain":
        return Mode(name, Strict(), enabled=False)
    rule: Verification = Margin()
    length, drafting = "auto", _ALL
    for part in name.split("+"):
        head = part.partition("/")[0]
        if head in ("strict", "margin"):
            rule = Strict() if part == "strict" else _margin(part)
        elif part in _DRAFTING:
            drafting = _DRAFTING[part]
        elif head.partition(":")[0] in ("fixed", "confidence", "companion", "auto"):
            parse_length(part)
            length = part
        else:
            raise OptionError(f"unknown mode {text.strip()[:60]!r}", _HINT)
    return Mode(name, rule, length, drafting)


def _margin(part: str) -> Margin:
    values: dict[str, float] = {}
    for setting in part.split("/")[1:]:
        key, _, value = setting.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise OptionError(f"{value[:20]!r} in {part[:60]!r} is no number", _HINT) from None
    unknown = set(values) - {"theta", "gap", "cap", "budget", "lookup"}
    if part.split("/", maxsplit=1)[0] != "margin" or unknown:
        raise OptionError(f"unknown setting in mode {part[:60]!r}", _HINT)
    cap, lookup = values.pop("cap", None), bool(values.pop("lookup", 1.0))
    return Margin(**values, cap=None if cap is None else int(cap), lookup=lookup)


class Bench:
    """One loaded model that answers in any mode.

    Each mode learns for itself, as it would alone: it has policies of its own, and starts each
    question with empty KVs. The cost curve is the machine's and shared.
    """

    def __init__(self, llm: SpeculativeLlama) -> None:
        self.llm = llm
        self._assembly = llm._open()  # noqa: SLF001 - measuring looks inside
        self._loop = self._assembly.session.loop
        self._policies: dict[str, LengthPolicy] = {}

    def asked(self, mode: Mode) -> dict[str, Any]:
        """What `SpeculativeLlama.steps` is asked for an answer in `mode`."""
        if mode.name not in self._policies:
            self._policies[mode.name] = self.llm.new_policy(mode.speculation)
        policy = self._policies[mode.name]
        return {"speculation": mode.speculation, "drafting": mode.drafting, "policy": policy}

    def lacks(self, mode: Mode) -> str:
        """Why a mode cannot be had with what is loaded; "" if it can."""
        if mode.drafting == "lookup" and self._loop.drafter is None:
            return "no prompt lookup is loaded (--draft auto or lookup+NAME)"
        if mode.drafting == "model" and not self._loop.draft_model:
            return "no draft model is loaded (--draft NAME or PATH)"
        if mode.length == "companion" and not self._loop.companion:
            return "no companion is loaded (--companion NAME or PATH)"
        return ""

    @property
    def curve(self) -> CostCurve:
        """The cost curve as the modes of this run have learned it."""
        policies = [*self._policies.values(), self.llm.new_policy()]
        return cast("Any", policies[0]).curve  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Empty every KV, so that nobody's prompt is read already."""
        self._assembly.session.engine.set_tokens(0, [])
        self.llm.reset()

    @property
    def names(self) -> tuple[str, str]:
        """Draft and companion that are loaded."""
        return str(self._assembly.draft), str(self._assembly.companion)
