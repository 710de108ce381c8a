"""The sampler's options, which several subcommands share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from pyspec.cli.command import option, tell
from pyspec.errors import OptionError
from pyspec.sampling.chain import DRY_BREAKERS, Sampling
from pyspec.sampling.noise import NOISES, chance_seed
from pyspec.sampling.suggested import FOLLOWED, suggested_by


def _breaker(text: str) -> str:
    """Replace backslash escapes for newline and tab, as llama.cpp's programs do."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _left(option_name: str, name: str, **settings: Any) -> Any:
    """Return a field for an option that a model may suggest; None leaves it to the model, or to the default of `Sampling`."""
    default = getattr(Sampling, name)
    settings |= {"type": type(default), "show_default": f"{default:g} or the model's own"}
    return option("Sampling", option_name, default=None, **settings)


@dataclass(frozen=True)
class SamplerOptions:
    """How the target chooses tokens. None: as the model suggests, or else the default of `Sampling`."""

    # fmt: off
    temperature: float | None = _left("--temp", "temperature", aliases=("--temperature",),
        help="Temperature: 0 always takes the likeliest token; higher values vary more.")
    top_k: int | None = _left("--top-k", "top_k", help="Choose among the N likeliest tokens; 0 for all.")
    top_p: float | None = _left("--top-p", "top_p",
        help="Choose among the likeliest tokens that together reach this probability.")
    min_p: float | None = _left("--min-p", "min_p", help="Drop tokens less likely than this share of the likeliest one.")
    typical_p: float | None = _left("--typical", "typical_p", aliases=("--typical-p",),
        help="Choose among the locally typical tokens that together reach this probability; 1 for all.")
    repeat_penalty: float | None = _left("--repeat-penalty", "repeat_penalty",
        help="Make the last 64 tokens less likely; 1 for no penalty.")
    presence_penalty: float | None = _left("--presence-penalty", "presence_penalty",
        help="Subtract this from the logits of the last 64 tokens; 0 for no penalty.")
    frequency_penalty: float | None = _left("--frequency-penalty", "frequency_penalty",
        help="Subtract this for each time that a token is among the last 64; 0 for no penalty.")
    seed: int | None = option("Sampling", "--seed", type=int,
        help="Seed of the random draws: a fixed seed gives the same text with any draft.")
    noise: str = option("Sampling", "--sampling", type=click.Choice(NOISES), default=NOISES[0],
        help="Source of random numbers: pyspec's, which target and draft share (coupled), or llama.cpp's.")
    dry_multiplier: float = option("Sampling", "--dry-multiplier", default=Sampling.dry_multiplier,
        help="DRY: penalty for tokens that continue a repetition of earlier text; 0 for off.")
    dry_base: float = option("Sampling", "--dry-base", default=Sampling.dry_base,
        help="DRY: factor by which the penalty grows with each repeated token.")
    dry_allowed_length: int = option("Sampling", "--dry-allowed-length", default=Sampling.dry_allowed_length,
        help="DRY: longest repetition without a penalty, tokens.")
    dry_penalty_last_n: int = option("Sampling", "--dry-penalty-last-n", default=Sampling.dry_penalty_last_n,
        help="DRY: how many tokens to look back, prompt included; -1 for all.")
    dry_sequence_breakers: tuple[str, ...] = option("Sampling", "--dry-sequence-breaker", metavar="TEXT", multiple=True,
        type=_breaker, default=DRY_BREAKERS, show_default=False,
        help="DRY: text that ends a repetition (default: newline, colon, quote, asterisk); may be repeated; none for no such "
        "text.")
    xtc_probability: float | None = _left("--xtc-probability", "xtc_probability",
        help="XTC: how often to exclude the likeliest tokens, 0 to 1.")
    xtc_threshold: float | None = _left("--xtc-threshold", "xtc_threshold",
        help="XTC: exclude tokens of at least this probability, except the least likely of them. No effect above 0.5.")
    dynatemp_range: float = option("Sampling", "--dynatemp-range", default=Sampling.dynatemp_range,
        help="Dynamic temperature: up to this much below --temp if the model is sure, above it if not; 0 for off.")
    dynatemp_exponent: float = option("Sampling", "--dynatemp-exp", default=Sampling.dynatemp_exponent,
        help="Dynamic temperature: exponent applied to the entropy.")
    # fmt: on

    @property
    def given(self) -> frozenset[str]:
        """Fields that the user has set, among those that a model may suggest."""
        return frozenset(name for name in FOLLOWED if getattr(self, name) is not None)

    def filled(self, suggested: Mapping[str, float] = MappingProxyType({})) -> dict[str, Any]:
        """Return all fields; what the user has not set is as suggested, or else the default of `Sampling`."""
        own = dict(vars(self))
        for name in FOLLOWED:
            if own[name] is None:
                own[name] = suggested.get(name, getattr(Sampling, name))
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
        if chosen is None:
            chosen = chance_seed()
        breakers = tuple(word for word in self.dry_sequence_breakers if word != "none")
        return Sampling(**{**own, "dry_sequence_breakers": breakers, "seed": chosen})

    def suggested(self, path: Path, name: str = "") -> Mapping[str, float]:
        """Return what a model suggests, and say what of it holds here. name: how the user called it."""
        found = suggested_by(path, name)
        if told := found.sentence(self.given):
            tell(told, err=True)
        return found.values
