"""The settings of a chat by their `/set` names, and their values as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass, replace
from difflib import get_close_matches
from math import inf, isnan
from typing import Any

import click

from pyspec.chat import HIDE, SHOW, UNASKED
from pyspec.draft.policies import parse_length
from pyspec.errors import OptionError
from pyspec.sampling.options import (
    DRY_BREAKERS,
    MAX_DRAFT,
    NOISES,
    Noise,
    SamplerNumbers,
    Sampling,
    numbers,
)
from pyspec.sampling.verification import Margin, Strict, Verification

SILENT, BRIEF, FULL = "off", "brief", "on"  # how many statistics to print after an answer
_OTHER_NAMES = {"temp": "temperature"}  # by names of options


Parse = Callable[[str], Any]  # reads a value's text; raises OptionError, or click's BadParameter


def _as(kind: Any) -> Parse:
    """Read text as one of click's types does."""
    return lambda text: kind.convert(text, None, None)


def _number(kind: type[int | float], low: float, high: float) -> Parse:
    whole = kind is int
    return _as(click.IntRange(int(low), int(high)) if whole else click.FloatRange(low, high))


def _one_of(*words: str) -> Parse:
    return _as(click.Choice(words))


def _length(text: str) -> str:
    parse_length(text)
    return text


_SWITCH = _as(click.BOOL)


def _setting(default: Any, parse: Parse, none: str = "") -> Any:
    """Return a field that `/set` changes. none: the word for None."""
    return field(default=default, metadata={"parse": parse, "none": none})


def number_settings(kind: type[SamplerNumbers] = SamplerNumbers) -> list[tuple[str, Any, Any]]:
    """Return a field for each number of sampling."""
    offered = (each for each in numbers(kind) if each.offered)
    return [(n.name, n.kind, _setting(n.default, _number(n.kind, *n.usual))) for n in offered]


_Numbers: Any = make_dataclass("_Numbers", number_settings(), frozen=True)
_PROBABILITY, _NATS = _number(float, 0, 1), _number(float, 0, inf)


@dataclass(frozen=True)
class ChatSettings(_Numbers):  # type: ignore[misc]  # its first fields come from the table
    """All settings of a chat, by their `/set` names."""

    # None draws one for each answer
    seed: int | None = _setting(None, _number(int, 0, 2**32 - 1), "random")
    noise: Noise = _setting(NOISES[0], _one_of(*NOISES))
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS  # by its option alone
    max_tokens: int | None = _setting(None, _number(int, 1, 2**31 - 1), "all")
    verify: str = _setting(Strict.name, _one_of(Strict.name, Margin.name))
    theta: float = _setting(Margin.theta, _PROBABILITY)
    gap: float = _setting(Margin.gap, _NATS)
    budget: float | None = _setting(None, _NATS, "none")
    confirm: int = _setting(Margin.confirm, _number(int, 0, 16))
    length: str | None = _setting(None, _length, "default")
    draft_max: int | None = _setting(None, _number(int, 0, MAX_DRAFT), "none")
    # dimmed, hidden, or asked of the model not at all
    reasoning: str = _setting(SHOW, _one_of(SHOW, HIDE, UNASKED))
    reasoning_budget: int = _setting(-1, _number(int, -1, 2**31 - 1))
    # a sentence after each answer, the counts as well, or nothing
    stats: str = _setting(BRIEF, _one_of(FULL, BRIEF, SILENT))
    wrap: bool = _setting(True, _SWITCH)
    tokens: bool = _setting(False, _SWITCH)  # colour answers by where their tokens came from

    @property
    def rule(self) -> Verification:
        return Strict() if self.verify == Strict.name else Margin.of(self)

    def sampling(self, seed: int) -> Sampling:
        known = {each.name for each in fields(Sampling)}
        own = {name: value for name, value in vars(self).items() if name in known}
        return Sampling(**own | {"seed": seed})


FIELDS = {
    each.name: each.metadata for each in fields(ChatSettings) if each.metadata
}  # the metadata of each setting


def unknown(name: str) -> OptionError:
    """Return the error for a setting that does not exist."""
    near = get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "/set lists them"
    return OptionError(f"there is no setting {name[:40]!r}", hint)


def own_name(name: str) -> str:
    """The name of a setting that a user may call as the option or the API's field is called."""
    return _OTHER_NAMES.get(name, name)


def changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    """Return `settings` with one value set from text. Raises OptionError, which names the setting."""
    name = own_name(name)
    if name not in FIELDS:
        raise unknown(name)
    parse, none = FIELDS[name]["parse"], FIELDS[name]["none"]
    try:
        parsed: Any = None if none and value == none else parse(value)
    except (OptionError, click.BadParameter) as error:
        raise OptionError(f"{name}: {error.message.rstrip('.')}") from None
    if isinstance(parsed, float) and isnan(parsed):
        raise OptionError(f"{name}: {value} is no number")
    return replace(settings, **{name: parsed})


def values(settings: ChatSettings) -> dict[str, str]:
    """Return all settings as text that `changed` accepts."""
    return {name: _text(getattr(settings, name), known["none"]) for name, known in FIELDS.items()}


def _text(value: Any, none: str) -> str:
    if value is None:
        return none
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
