"""Modes, their options, and the checks that a program can make on answers.

Each check of a question is an object with `kind`:

json      the answer is one JSON value; `keys`: it is an object with these keys
list      a list of exactly `n` items, each on its own line with a bullet or a number
copy      the answer contains `text`, except for white space at line ends
number    the last number of the answer is `value`
compiles  the answer's code is Python

A mode is parts joined by `+`, in any order, each setting one thing:

    plain                     no speculation
    strict | margin[/K=V...]  the rule; K is theta, gap, budget, lookup (0: lookup is never relaxed) or confirm
    fixed:K | confidence:P | companion | auto    the draft length
    lookup | model | nothing  what drafts: only prompt lookup, only the draft model, no drafter; both by default
    apart                     above temperature 0 the target draws alone, and drafts are greedy
    block                     above temperature 0 the draft draws alone, and is verified as a whole

    plain   strict   margin   fixed:4+strict   lookup+strict   margin/gap=2.5/theta=0.84
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pyspec.draft.lengths import parse_length
from pyspec.engine.options import Drafting, Speculation
from pyspec.errors import InputError, OptionError
from pyspec.sampling.chain import Sampling
from pyspec.sampling.options import Noise, derive_seed
from pyspec.sampling.verification import Margin, Strict, Verification

from .questions import Question

M = TypeVar("M", bound="Mode")


# -- checks ------------------------------------------------------------------------------------------------------------


_FENCE = re.compile(r"```[a-zA-Z0-9_+-]*[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+\S", re.MULTILINE)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def passes(what: dict[str, Any], answer: str) -> bool:
    """Whether an answer passes. Raises InputError for an unknown kind of check."""
    kind = what.get("kind")
    if kind not in _CHECKS:
        raise InputError(f"unknown check {kind!r}", f"there are: {', '.join(_CHECKS)}")
    return _CHECKS[kind](what, answer)


def block(answer: str) -> str:
    """The first fenced block of an answer, or all of it; keeps indentation."""
    found = _FENCE.search(answer)
    return found.group(1) if found else answer.strip("\n")


def _json(what: dict[str, Any], answer: str) -> bool:
    try:
        value = json.loads(block(answer))
    except (ValueError, RecursionError):
        return False
    keys = what.get("keys", [])
    return not keys or (isinstance(value, dict) and all(key in value for key in keys))


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _number(what: dict[str, Any], answer: str) -> bool:
    found = _NUMBER.findall(answer.replace(",", ""))
    return bool(found) and abs(float(found[-1]) - float(what["value"])) < 1e-6


def _compiles(code: str) -> bool:
    try:
        return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


_CHECKS: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "json": _json,
    "list": lambda what, answer: len(_ITEM.findall(answer)) == int(what["n"]),
    "copy": lambda what, answer: _stripped(what["text"]) in _stripped(answer),
    "number": _number,
    "compiles": lambda _, answer: _compiles(block(answer)),
}


# -- modes -------------------------------------------------------------------------------------------------------------


_NOISES: dict[str, Noise] = {"apart": "llama.cpp", "block": "block"}

_MODES = "modes look like plain, strict, margin/gap=0.5, fixed:4+strict, lookup+margin"


def first_check(question: Question) -> dict[str, Any] | None:
    """What can be tested in the answer to the first turn."""
    return question.check[0] if question.check else None


def is_closed(rule: Margin) -> bool:
    """Whether the gate can never open."""
    return rule.theta >= 1.0 or rule.budget == 0.0


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
        return (
            not self.enabled
            or isinstance(self.rule, Strict)
            or (isinstance(self.rule, Margin) and is_closed(self.rule))
        )

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
        elif part in _NOISES:
            noise = _NOISES[part]
        elif part.partition(":")[0] in ("fixed", "confidence", "companion", "auto"):
            parse_length(part)
            length = part
        else:
            raise OptionError(f"unknown mode {text.strip()[:60]!r}", _MODES)
    if noise == "block" and isinstance(rule, Margin):
        raise OptionError(
            f"{name[:60]!r} verifies whole drafts by the margin rule", "use strict+block"
        )
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


# -- all together ------------------------------------------------------------------------------------------------------


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
