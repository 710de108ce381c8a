"""Modes and their options, and what measurements raise.

A mode is parts joined by `+`, in any order, each setting one thing:

    plain                     no speculation
    strict | margin[/K=V...]  the rule; K is theta, gap, budget, lookup (0: lookup is never relaxed) or confirm
    fixed:K | companion | auto  the draft length
    lookup | model | nothing  what drafts: only prompt lookup, only the draft model, no drafter; both by default
    apart                     above temperature 0 the target draws alone, and drafts are greedy

    plain   strict   margin   fixed:4+strict   lookup+strict   margin/gap=2.5/theta=0.84
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspec.draft.policies import parse_length
from pyspec.engine.options import Drafting, Speculation
from pyspec.errors import OptionError, PyspecError
from pyspec.sampling.options import Noise, Sampling, derive_seed
from pyspec.sampling.verification import Margin, Strict, Verification

from .questions import Question

M = TypeVar("M", bound="Mode")


class MeasureError(PyspecError):
    """A measurement cannot be made, or is not valid."""


class PeerMissing(MeasureError):
    """A peer is not available and is skipped; the message says why."""


class UnequalOutputs(MeasureError):
    """Answers that must be equal differ, and decoding them again with the same rows does not reproduce the difference."""


_MODES = "modes look like plain, strict, margin/gap=0.5, fixed:4+strict, lookup+margin"


@dataclass(frozen=True)
class Mode:
    """How to answer. drafting: which of the loaded drafters may draft."""

    name: str
    rule: Verification
    length: str = "auto"
    drafting: Drafting = "all"
    enabled: bool = True
    noise: Noise = "coupled"

    def sampling(self, asked: Sampling) -> Sampling:
        """`asked`, drawn as this mode draws."""
        return replace(asked, noise=self.noise)

    @property
    def exact(self) -> bool:
        """Whether greedy answers must equal those of plain decoding."""
        return not self.enabled or isinstance(self.rule, Strict)

    @property
    def speculation(self) -> Speculation:
        """The mode as per-call options."""
        return Speculation(enabled=self.enabled, verification=self.rule, length=self.length)


def parse_modes(text: str) -> list[Mode]:
    """Parse comma-separated modes, each named once. Raises OptionError."""
    return each_once(text, parse_mode, _MODES)


def each_once(text: str, parse: Callable[[str], M], hint: str) -> list[M]:
    """Parse comma-separated words. Raises OptionError if one is named twice, or none is."""
    modes = [parse(part) for part in text.split(",") if part.strip()]
    if not modes or len({mode.name for mode in modes}) < len(modes):
        raise OptionError("name at least one, and none twice", hint)
    return modes


def parse_mode(text: str) -> Mode:
    """Parse one mode; see the module's docstring. Raises OptionError."""
    name = text.strip().lower()
    if name == "plain":
        return Mode(name, Strict(), enabled=False)
    rule: Verification = Margin()
    length, drafting, noise = Mode.length, Mode.drafting, Mode.noise
    for part in name.split("+"):
        if part.partition("/")[0] in ("strict", "margin"):
            rule = Strict() if part == "strict" else _margin(part)
        elif part in ("lookup", "model", "nothing"):
            drafting = cast("Drafting", part)
        elif part == "apart":
            noise = "llama.cpp"
        elif part.partition(":")[0] in ("fixed", "companion", "auto"):
            parse_length(part)
            length = part
        else:
            raise OptionError(f"unknown mode {text.strip()[:60]!r}", _MODES)
    return Mode(name, rule, length, drafting, noise=noise)


def _margin(part: str) -> Margin:
    rule, *settings = part.split("/")
    values: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        try:
            values[key] = _SETTINGS.get(key, float)(value)
        except ValueError:
            raise OptionError(f"{value[:20]!r} in {part[:60]!r} is not a number", _MODES) from None
    if rule != "margin" or set(values) - {field.name for field in fields(Margin)}:
        raise OptionError(f"unknown setting in mode {part[:60]!r}", _MODES)
    return Margin(**values)


_SETTINGS: dict[str, Callable[[str], Any]] = {
    "lookup": lambda value: bool(float(value)), "confirm": int,
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """max_tokens: of one answer; temperature, seed: of the sampler; repeat: runs per question."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 1
    repeat: int = 1
    warm_up: int = 3

    def sampling(self, prompt: Sequence[int], repeat: int = 0) -> Sampling:
        """The engine's sampling: each prompt and repetition has its own noise, the same in all modes."""
        return Sampling(temperature=self.temperature, seed=derive_seed(self.seed, repeat, *prompt))


@dataclass
class Task:
    """What to compare, and where to write the results.

    peer_draft: a draft GGUF for llama-server; None uses the loaded one. engine: llama.cpp's options as a page prints them.
    """

    questions: list[Question]
    modes: list[Mode]
    options: Options
    folder: Path
    peers: list[str] = field(default_factory=list)
    server: Path | None = None
    peer_draft: Path | None = None
    title: str = "Benchmark"
    about: str = ""
    command: str = "python bench/compare.py"
    engine: str = ""
