"""What `/set` changes: options of the sampler, of the margin rule and of the chat, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

from pyspec.engine.handle import MAX_DRAFT
from pyspec.errors import OptionError
from pyspec.policy.lengths import parse_length
from pyspec.rules import Margin, Strict, Verification
from pyspec.sampling import Sampling

Parse = Callable[[str], Any]

SILENT, BRIEF, FULL = "off", "brief", "on"
"""How much is said after an answer."""


@dataclass(frozen=True)
class ChatSettings:
    """Everything that is not the conversation.

    seed: None draws one for each answer. trim: drop the oldest turns when the context is full. stats: `brief` for a
    sentence after each answer, `on` for the counts as well, `off` for nothing. wrap: break lines between words.
    """

    sampling: Sampling = Sampling()
    margin: Margin = Margin()
    verify: str = "strict"
    length: str | None = None
    draft_max: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    trim: bool = True
    stats: str = "brief"
    wrap: bool = True

    @property
    def rule(self) -> Verification:
        """The rule in force."""
        return Strict() if self.verify == "strict" else self.margin


def _number(kind: type[int | float], low: float, high: float) -> Parse:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = kind(low) - 1
        if not low <= value <= high or (not isfinite(value) and high != inf):
            top = f"{high:.12g}" if isfinite(high) else "inf"
            article = "a whole number" if kind is int else "a number"
            raise OptionError(f"{text[:40]} is not {article} from {low:g} to {top}")
        return value

    return parse


def _one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text not in words:
            raise OptionError(f"{text[:40]} is not one of {', '.join(words)}")
        return text

    return parse


def _switch(text: str) -> bool:
    return bool(_one_of("on", "off")(text) == "on")


def _length(text: str) -> str:
    parse_length(text)
    return text


_COUNT = _number(int, 0, 2**31 - 1)
_PROBABILITY = _number(float, 0, 1)


@dataclass(frozen=True)
class _Field:
    """Where a setting lives: a part of `ChatSettings` ("" for itself), attribute; its word for None."""

    part: str
    attribute: str
    parse: Parse
    none: str | None = None


FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "temp": _Field("sampling", "temperature", _number(float, 0, 100)),
        "top_k": _Field("sampling", "top_k", _COUNT),
        "top_p": _Field("sampling", "top_p", _number(float, 1e-6, 1)),
        "min_p": _Field("sampling", "min_p", _PROBABILITY),
        "repeat_penalty": _Field("sampling", "repeat_penalty", _number(float, 0.01, 100)),
        "seed": _Field("", "seed", _number(int, 0, 2**32 - 1), "random"),
        "max_tokens": _Field("", "max_tokens", _number(int, 1, 2**31 - 1), "all"),
        "verify": _Field("", "verify", _one_of("margin", "strict")),
        "theta": _Field("margin", "theta", _PROBABILITY),
        "gap": _Field("margin", "gap", _number(float, 0, inf)),
        "budget": _Field("margin", "budget", _number(float, 0, inf), "none"),
        "length": _Field("", "length", _length, "default"),
        "draft_max": _Field("", "draft_max", _number(int, 0, MAX_DRAFT), "none"),
        "trim": _Field("", "trim", _switch),
        "stats": _Field("", "stats", _one_of(FULL, BRIEF, SILENT)),
        "wrap": _Field("", "wrap", _switch),
    }
)
"""Each setting by the name that `/set` takes."""


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """`settings` with one of them set from its text. Raises OptionError, naming the setting."""
    if name not in FIELDS:
        raise OptionError(f"there is no setting {name[:40]!r}", f"use {', '.join(FIELDS)}")
    where = FIELDS[name]
    try:
        parsed: Any = None if value == where.none else where.parse(value)
    except OptionError as error:
        raise OptionError(f"{name}: {error.message}", error.hint) from None
    if not where.part:
        return replace(settings, **{where.attribute: parsed})
    part = replace(getattr(settings, where.part), **{where.attribute: parsed})
    return replace(settings, **{where.part: part})


def values(settings: ChatSettings) -> dict[str, str]:
    """Every setting as the text that `changed` takes."""
    return {name: _text(where, settings) for name, where in FIELDS.items()}


def _text(where: _Field, settings: ChatSettings) -> str:
    value = getattr(getattr(settings, where.part) if where.part else settings, where.attribute)
    if value is None:
        return str(where.none)
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def apply(settings: ChatSettings, saved: Mapping[str, str]) -> tuple[ChatSettings, list[str]]:
    """`settings` with saved texts put in, and a sentence for each that cannot be used."""
    refused = []
    for name, value in saved.items():
        try:
            settings = changed(settings, name, value)
        except OptionError as error:
            refused.append(error.message)
    return settings, refused
