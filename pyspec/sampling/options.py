"""The numbers that shape how tokens are chosen, each declared once; every interface derives its options from these.

A new one is a field of `SamplerNumbers`: the command line, `/set`, records, HTTP requests and `llm` have it by that, and a test
says where the class's written-out signatures lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, get_type_hints

from pyspec.sampling.limits import Range, check_ranges


class SamplerOption(NamedTuple):
    """One number.

    help: its meaning in lower case, without a full stop. word: its name on the command line. aliases: others there. usual: what
    may be given by hand, where that is less than `allowed`. suggested: whether a model's own value is followed. offered: whether
    interfaces beyond llama-cpp-python's own have it.
    """

    name: str
    kind: type[int | float]
    default: float
    allowed: Range
    help: str
    word: str
    aliases: tuple[str, ...]
    usual: tuple[float, float]
    suggested: bool
    offered: bool


def number(
    default: float,
    allowed: Range,
    help_: str = "",
    *,
    word: str = "",
    aliases: tuple[str, ...] = (),
    usual: tuple[float, float] | None = None,
    suggested: bool = False,
) -> Any:
    """Return a dataclass field that is one of the numbers; those without a meaning for users are not offered for."""
    metadata = {
        "allowed": allowed, "help": help_, "word": word, "aliases": aliases,
        "usual": usual or allowed[:2], "suggested": suggested, "offered": bool(help_),
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def numbers(kind: type[SamplerNumbers]) -> tuple[SamplerOption, ...]:
    """Return the options that the fields of a dataclass declare, in order."""
    kinds, found = get_type_hints(kind), list[SamplerOption]()
    for each in fields(kind):
        if each.metadata:
            known = {**each.metadata, "word": each.metadata["word"] or each.name.replace("_", "-")}
            found.append(
                SamplerOption(
                    name=each.name, kind=kinds[each.name], **{**known, "default": each.default}
                )
            )
    return tuple(found)


_WHOLE = (1 << 31) - 1
_PROBABILITY = Range(0.0, 1.0, False, "0 to 1")


@dataclass(frozen=True)
class SamplerNumbers:
    """Names and defaults are llama-cpp-python's, or else llama-server's; `pyspec.sampling.chain.Sampling` documents them."""

    # fmt: off
    temperature: float = number(0.8, Range(-1e9, 1e9, False, "0 for greedy, or up to about 2"),
        "0 always takes the likeliest token; higher values vary more",
        word="temp", aliases=("--temperature",), usual=(0, 100), suggested=True)
    top_k: int = number(40, Range(-_WHOLE - 1, _WHOLE, True, "1 or more, or 0 for all"),
        "choose among this many of the likeliest tokens; 0 for all", usual=(0, _WHOLE), suggested=True)
    top_p: float = number(0.95, Range(0.0, 1.0, False, "more than 0, up to 1"),
        "choose among the likeliest tokens that together reach this probability", usual=(1e-6, 1), suggested=True)
    min_p: float = number(0.05, _PROBABILITY, "drop tokens less likely than this share of the likeliest one", suggested=True)
    typical_p: float = number(1.0, Range(0.0, 1.0, False, "more than 0, up to 1"),
        "choose among the locally typical tokens that together reach this probability; 1 for all",
        word="typical", aliases=("--typical-p",), usual=(1e-6, 1), suggested=True)
    repeat_penalty: float = number(1.0, Range(1e-3, 1e3, False, "1 for none, or about 1.1"),
        "make the last 64 tokens less likely; 1 for no penalty", usual=(0.01, 100), suggested=True)
    presence_penalty: float = number(0.0, Range(-1e3, 1e3, False, "-2 to 2"),
        "subtract this from the logits of the last 64 tokens; 0 for no penalty", suggested=True)
    frequency_penalty: float = number(0.0, Range(-1e3, 1e3, False, "-2 to 2"),
        "subtract this for each time that a token is among the last 64; 0 for no penalty", suggested=True)
    mirostat_mode: int = number(0, Range(-_WHOLE - 1, _WHOLE, True, "1 or 2, or 0 for neither"))
    mirostat_tau: float = number(5.0, Range(0.0, 1e3, False, "0 or more, usually 5"))
    mirostat_eta: float = number(0.1, Range(0.0, 1e3, False, "0 or more, usually 0.1"))
    dry_multiplier: float = number(0.0, Range(0.0, 1e3, False, "0 for none, or about 0.8"),
        "DRY: penalty for tokens that continue a repetition of earlier text; 0 for off")
    dry_base: float = number(1.75, Range(1.0, 1e3, False, "1 or more, usually 1.75"),
        "DRY: factor by which the penalty grows with each repeated token")
    dry_allowed_length: int = number(2, Range(0, _WHOLE, True, "0 or more, usually 2"),
        "DRY: longest repetition without a penalty, tokens")
    dry_penalty_last_n: int = number(64, Range(-1, _WHOLE, True, "0 for none, or -1 for the whole text"),
        "DRY: how many tokens to look back, prompt included; -1 for all")
    xtc_probability: float = number(0.0, Range(0.0, 1.0, False, "0 for never, to 1"),
        "XTC: how often to exclude the likeliest tokens, 0 to 1", suggested=True)
    xtc_threshold: float = number(0.1, Range(0.0, 1.0, False, "0 to 0.5; above that, nothing is excluded"),
        "XTC: exclude tokens of at least this probability, except the least likely of them; no effect above 0.5",
        suggested=True)
    dynatemp_range: float = number(0.0, Range(0.0, 1e9, False, "0 for a fixed temperature, or less than the temperature"),
        "dynamic temperature: up to this much below the temperature if the model is sure, above it if not; 0 for off")
    dynatemp_exponent: float = number(1.0, Range(0.0, 1e3, False, "0 or more, usually 1"),
        "dynamic temperature: exponent applied to the entropy", word="dynatemp-exp")
    # fmt: on


NUMBERS = {each.name: each for each in numbers(SamplerNumbers)}
"""The options, by name."""

OFFERED = tuple(each for each in NUMBERS.values() if each.offered)
"""Those that every interface has."""

SUGGESTED = tuple(each.name for each in NUMBERS.values() if each.suggested)
"""Names of those that a model may suggest, in the order in which they are told."""


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raise OptionError for one of the numbers outside its range; skips None and other names."""
    check_ranges(values, {name: each.allowed for name, each in NUMBERS.items()})
