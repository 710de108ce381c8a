"""What is compared: modes as strings, and who answers in them.

A mode is parts joined by `+`, in any order, each setting one thing:

    plain                     no speculation
    strict | margin[/K=V...]  the rule; K is theta, gap, budget or lookup (0: lookup is never relaxed)
    fixed:K | confidence:P | companion | auto    the draft length
    lookup | model | nothing  what drafts: prompt lookup alone, the draft model alone, no drafter;
                              both where not said

    plain   strict   margin   fixed:4+strict   lookup+strict   margin/gap=2.5/theta=0.84
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspec.errors import OptionError
from pyspec.llama import Speculation, SpeculativeLlama
from pyspec.measure.records import Options, TimedAnswer
from pyspec.options import Drafting
from pyspec.policy.lengths import parse_length
from pyspec.rules import Margin, Strict, Verification
from pyspec.tokens import Step

_HINT = "modes look like plain, strict, margin/gap=0.5, fixed:4+strict, lookup+margin"
_DRAFTING: dict[str, Drafting] = {"lookup": "lookup", "model": "model", "nothing": "nothing"}


@dataclass(frozen=True)
class Mode:
    """How to answer. drafting: what may draft of all that is loaded."""

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
    length, drafting = Mode.length, Mode.drafting
    for part in name.split("+"):
        if part.partition("/")[0] in ("strict", "margin"):
            rule = Strict() if part == "strict" else _margin(part)
        elif part in _DRAFTING:
            drafting = _DRAFTING[part]
        elif part.partition(":")[0] in ("fixed", "confidence", "companion", "auto"):
            parse_length(part)
            length = part
        else:
            raise OptionError(f"unknown mode {text.strip()[:60]!r}", _HINT)
    return Mode(name, rule, length, drafting)


def _margin(part: str) -> Margin:
    rule, *settings = part.split("/")
    values: dict[str, float] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            values[key] = float(value)
        except ValueError:
            raise OptionError(f"{value[:20]!r} in {part[:60]!r} is no number", _HINT) from None
    if rule != "margin" or set(values) - {"theta", "gap", "budget", "lookup"}:
        raise OptionError(f"unknown setting in mode {part[:60]!r}", _HINT)
    return Margin(lookup=bool(values.pop("lookup", 1.0)), **values)


def lacks(llm: SpeculativeLlama, mode: Mode) -> str:
    """Why a mode cannot be had with what is loaded; "" if it can."""
    loop = llm.assembly.session.loop
    if mode.drafting == "lookup" and loop.drafter is None:
        return "no prompt lookup is loaded (--draft auto or lookup+NAME)"
    if mode.drafting == "model" and not loop.draft_model:
        return "no draft model is loaded (--draft NAME or PATH)"
    if mode.length == "companion" and not loop.companion:
        return "no companion is loaded (--companion NAME or PATH)"
    return ""


# -- contenders -------------------------------------------------------------------------------------------------------


class Clock:
    """An answer's tokens and when they arrived, seen from outside: the same for every contender."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._n_prompt, self.tokens = len(prompt), list[int]()
        self._start = perf_counter()
        self._first = self._last = 0.0

    def got(self, tokens: Sequence[int]) -> None:
        """These have arrived."""
        if tokens:
            self._last = perf_counter()
            self._first = self._first or self._last
            self.tokens += tokens

    def turn(self, finish: str, **more: Any) -> TimedAnswer:
        """The finished turn."""
        total = perf_counter() - self._start
        last = self._last or self._start + total
        first = self._first or last
        first_s, decode_s = round(first - self._start, 6), round(last - first, 6)
        times = first_s, decode_s, round(total, 6)
        return TimedAnswer(self._n_prompt, self.tokens, finish, *times, **more)


class Ours:
    """One mode of a loaded model that serves them all.

    Each mode learns for itself, as it would alone: it has a policy of its own. The cost curve is the machine's and shared.
    """

    peer = False

    def __init__(self, llm: SpeculativeLlama, mode: Mode) -> None:
        self.llm, self.mode = llm, mode
        self.name, self.exact = mode.name, mode.exact
        self.policy = llm.new_policy(mode.speculation)

    def forget(self) -> None:
        """Empty every KV, so that nobody's prompt is read already."""
        self.llm.assembly.session.engine.set_tokens(0, [])
        self.llm.reset()

    def steps(self, prompt: Sequence[int], max_tokens: int, options: Options) -> Iterator[Step]:
        """The rounds of an answer, by the mode's own policy."""
        return self.llm.steps(
            prompt, options.sampling(), max_tokens=max_tokens, speculation=self.mode.speculation,
            drafting=self.mode.drafting, policy=self.policy,
        )  # fmt: skip

    def answer(self, prompt: Sequence[int], max_tokens: int, options: Options) -> TimedAnswer:
        """Answer, timed."""
        finish = "length"
        clock = Clock(prompt)
        for step in self.steps(prompt, max_tokens, options):
            clock.got([token.id for token in step.tokens])
            finish = step.finish_reason or finish
        return clock.turn(finish, speculation=dict(self.llm.last_speculation))


# -- other programs' processor time; known on Linux alone ------------------------------------------------------------------


BOUND = 0.05
"""Processor seconds of others in a second: an answer timed beside more than this is timed again."""

_SHORT_S = 0.1  # ticks are too coarse for less
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Watch:
    """How much of the processors other programs took since it was made."""

    def __init__(self) -> None:
        self._start, self._all, self._own = perf_counter(), _all_s(), _own_s()

    def others(self) -> float:
        """Processor seconds a second that programs other than this one and its children took since."""
        passed = perf_counter() - self._start
        if passed < _SHORT_S:
            return 0.0
        taken = (_all_s() - self._all) - (_own_s() - self._own)
        return max(0.0, taken - 2.0 / _TICKS) / passed  # each count is rounded to a tick


def _all_s() -> float:
    """Seconds that all processors have worked."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, hard, soft = map(int, fields)
    return (user + nice + system + hard + soft) / _TICKS


def _own_s() -> float:
    """Seconds that this process and its living children have worked."""
    own, out = os.getpid(), 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if own in (int(path.parent.name), int(fields[1])):
            out += (int(fields[11]) + int(fields[12])) / _TICKS
    return out
