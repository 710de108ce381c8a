"""The sampler's options, which several subcommands share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from pyspec.cli.command import option, tell
from pyspec.errors import OptionError
from pyspec.sampling.noise import NOISES, chance_seed
from pyspec.sampling.options import OFFERED, SUGGESTED, SamplerNumbers, numbers
from pyspec.sampling.settings import DRY_BREAKERS, Sampling


def _breaker(text: str) -> str:
    """Replace backslash escapes for newline and tab, as llama.cpp's programs do."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


_EVERYDAY = {
    "temperature": "0: always the likeliest; higher varies more.",
    "top_k": "Choose among the N likeliest tokens; 0: all.",
    "top_p": "Among the likeliest that reach this share.",
    "min_p": "Among those this likely beside the first.",
    "repeat_penalty": "Against the last 64 tokens; 1: none.",
}
"""What `--help` says about the numbers that people set; the others have llama.cpp's names."""


def number_options(kind: type[SamplerNumbers] = SamplerNumbers) -> list[tuple[str, Any, Any]]:
    """Return a field for each number of sampling; None leaves it to the model, or to its default."""
    made = []
    for each in numbers(kind):
        if each.offered:
            meaning = (
                f"{_EVERYDAY[each.name]}  [default: {each.default:g}]"
                if each.name in _EVERYDAY
                else None
            )
            settings = {"default": None, "type": each.kind, "help": meaning}
            own = option("Sampling", f"--{each.word}", aliases=each.aliases, **settings)
            made.append((each.name, each.kind | None, own))
    return made


_Numbers: Any = make_dataclass("_Numbers", number_options(), frozen=True)


@dataclass(frozen=True)
class SamplerOptions(_Numbers):  # type: ignore[misc]  # its fields come from the table
    """How the target chooses tokens. None: as the model suggests, or else the default."""

    # fmt: off
    seed: int | None = option("Sampling", "--seed", type=int,
        help="The same text again, with any draft.")
    noise: str = option("Sampling", "--sampling", type=click.Choice(NOISES), default=NOISES[0],
metavar="KIND",
        help="Random numbers that target and draft share (coupled) or not (block: accepts more), or llama.cpp's; auto: coupled "
        "with a seed.")
    dry_sequence_breakers: tuple[str, ...] = option("Sampling", "--dry-sequence-breaker", metavar="TEXT", multiple=True,
        type=_breaker, default=DRY_BREAKERS, show_default=False)
    # fmt: on

    @property
    def given(self) -> frozenset[str]:
        """Fields that the user has set, among those that a model may suggest."""
        return frozenset(name for name in SUGGESTED if getattr(self, name) is not None)

    def filled(self, suggested: Mapping[str, float] = MappingProxyType({})) -> dict[str, Any]:
        """Return all fields; what the user has not set is as suggested, or else its default."""
        own = dict(vars(self))
        for each in OFFERED:
            if own[each.name] is None:
                own[each.name] = suggested.get(each.name, each.default)
        return own

    def sampling(
        self, seed: int | None = None, suggested: Mapping[str, float] = MappingProxyType({})
    ) -> Sampling:
        """Return the sampling options. Without --seed, use `seed`, or else a random one. Raises OptionError.

        suggested: the model's own values, for options that are not given.
        """
        own = self.filled(suggested)
        if not 0 <= own["temperature"] < math.inf:
            hint = "use 0 for greedy, or up to about 2"
            raise OptionError(f"--temp is {self.temperature}", hint)
        chosen = self.seed if self.seed is not None else seed
        own |= {"seed": chance_seed() if chosen is None else chosen, "chance": chosen is None}
        breakers = tuple(word for word in self.dry_sequence_breakers if word != "none")
        return Sampling(**{**own, "dry_sequence_breakers": breakers})

    def suggested(self, path: Path, name: str = "") -> Mapping[str, float]:
        """Return what a model suggests, and say what of it holds here. name: how the user called it."""
        from pyspec.sampling.suggested import suggested_by  # noqa: PLC0415 - reads models' files

        found = suggested_by(path, name)
        if sentence := found.sentence(self.given):
            tell(sentence, err=True)
        return found.values
