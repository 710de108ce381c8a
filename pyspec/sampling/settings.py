"""How an answer's tokens are chosen: the sampler options, without what carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspec.errors import OptionError
from pyspec.sampling.limits import check_bias, check_breakers, check_ranges
from pyspec.sampling.noise import ANY_SEED, COLDEST, Coupling, Draw, Noise, chance_seed, check_noise
from pyspec.sampling.options import NUMBERS, SamplerNumbers, check_numbers

_FEW = 256  # candidates: PS_MOST_TOP

DRY_BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's default: what ends a repetition."""


@dataclass(frozen=True)
class Sampling(SamplerNumbers):
    """How the target chooses tokens; names and defaults are llama-cpp-python's, or else llama-server's.

    Penalties, DRY, XTC, bias, grammars and mirostat change rows, so no token is relaxed while they are on. Mirostat always draws
    with llama.cpp's random numbers.

    Attributes:
        temperature: 0 takes the likeliest token; below 0 draws from the untruncated softmax at temperature 1.
        top_k: Draw among this many likeliest tokens; 0 or less for all.
        top_p: Draw among the likeliest tokens that together have this probability.
        min_p: Draw among tokens with at least this share of the likeliest one's probability.
        typical_p: Draw among the locally typical tokens that together have this probability; 1 for all.
        repeat_penalty: Divides positive logits of recent tokens, and multiplies negative ones; 1 for none.
        frequency_penalty: Subtracted from a token's logit for each recent occurrence.
        presence_penalty: Subtracted from a token's logit if it occurred recently.
        mirostat_mode: 1 or 2 for mirostat or its second version, 0 for neither.
        mirostat_tau: The surprise that mirostat aims at, in bits per token.
        mirostat_eta: How fast mirostat corrects itself.
        seed: Seed of the random numbers, of which 32 bits count; 0xFFFFFFFF (-1) takes a random seed.
        logit_bias: Added to logits, by token id.
        noise: "coupled" draws with random numbers that target and draft share, so that a seed gives the same text with any draft.
            "block" lets the draft draw for itself and verifies its tokens as a whole, which accepts more of them; the text then
            depends on the draft and its lengths. "auto" is "block" where `chance` holds and rows are cheap enough, else
            "coupled". "llama.cpp" gives that library's draws.
        chance: Whether nobody asked for this seed.
        dry_multiplier: DRY: a token that would extend a repetition of n tokens loses multiplier * base ** (n - allowed_length).
        dry_base: The base of that formula.
        dry_allowed_length: Repetitions shorter than this many tokens cost nothing.
        dry_penalty_last_n: Tokens that DRY looks back on, including the prompt's; -1 for all.
        dry_sequence_breakers: Texts that no repetition extends across.
        xtc_probability: XTC: how often it excludes tokens: of those that reach the threshold, all but the least likely.
        xtc_threshold: The probability that a token has to reach; above 0.5 nothing is excluded.
        dynatemp_range: How much lower the temperature is where the target is sure, and how much higher where it is not.
        dynatemp_exponent: The temperature rises between these with this power of the normalised entropy.

    Raises:
        OptionError: A value is outside its range.
    """

    seed: int = 0xFFFFFFFF
    logit_bias: Mapping[int, float] | None = None
    noise: Noise = "auto"
    chance: bool = False
    dry_sequence_breakers: Sequence[str] = DRY_BREAKERS

    def __post_init__(self) -> None:
        check_ranges(vars(self))
        check_numbers(vars(self))
        check_breakers(self.dry_sequence_breakers)
        check_bias(self.logit_bias)
        check_noise(self.noise)
        if self.top_p == 0.0:
            raise OptionError("top_p is 0", f"use {NUMBERS['top_p'].allowed.usual}")
        object.__setattr__(self, "seed", int(self.seed) & ANY_SEED)
        if 0.0 < self.temperature < COLDEST:
            object.__setattr__(self, "temperature", COLDEST)

    @property
    def penalised(self) -> bool:
        """Whether the answer's own tokens are penalised."""
        return self.repeat_penalty != 1.0 or bool(self.frequency_penalty or self.presence_penalty)

    @property
    def dry(self) -> bool:
        """Whether repetitions of several tokens are penalised."""
        return self.dry_multiplier != 0.0 and self.dry_penalty_last_n != 0

    @property
    def excluding(self) -> bool:
        """Whether XTC may exclude the likeliest tokens; with a threshold above 0.5, no second token can reach it."""
        possible = self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5
        return possible and self.temperature > 0.0 and not self._mirostat

    @property
    def shaped(self) -> bool:
        """Whether rows are changed before sampling."""
        reshaped = self.penalised or self.dry or bool(self.logit_bias)
        return reshaped or self.excluding or self._mirostat

    @property
    def _mirostat(self) -> bool:
        return self.mirostat_mode != 0 and self.temperature > 0

    @property
    def greedy(self) -> bool:
        """Whether the choice is simply the argmax of the raw row."""
        return self.temperature == 0.0 and not self.shaped

    @property
    def drawn(self) -> bool:
        """Whether chance plays a part: with a single candidate nothing is drawn, although a chain is needed."""
        single = self.top_k == 1 and self.temperature > 0.0 and not self._mirostat
        return self.temperature != 0.0 and not single

    @property
    def ours(self) -> bool:
        """Whether the engine draws, with noise of its own."""
        return self.noise != "llama.cpp" and self.drawn and not self._mirostat

    @property
    def narrow(self) -> bool:
        """Whether few tokens of a row are left to draw from; computing the probabilities of all takes milliseconds."""
        return self.temperature > 0.0 and (self.min_p > 0.0 or 0 < self.top_k <= _FEW)

    @property
    def draw(self) -> Draw:
        """How target and draft choose."""
        if not self.ours:
            return "apart" if self.drawn else "greedy"
        return "block" if self.noise == "block" else "coupled"

    @property
    def coupling(self) -> Coupling | None:
        """What the engine needs to draw; None if llama.cpp draws, or nothing is drawn."""
        if not self.ours:
            return None
        own = (self.temperature, self.min_p, self.top_p) if self.temperature > 0.0 else (1.0, 0.0)
        return Coupling(self.seed, *own)._replace(block=self.draw == "block")

    def seeded(self) -> Sampling:
        """A copy with a seed that can be reported, if a random one was asked for."""
        if self.seed != ANY_SEED or not self.drawn:
            return self
        return replace(self, seed=chance_seed(), chance=True)

    def settled(self, *, possible: bool, faster: bool) -> Sampling:
        """A copy that names whose numbers draw, and their seed.

        possible: whether drafts of this answer may be verified as a whole. faster: whether that pays here.
        """
        own = self.seeded()
        if own.noise == "llama.cpp":
            return own
        whole = possible and (
            own.noise == "block" or (own.noise == "auto" and own.chance and faster)
        )
        return replace(own, noise="block" if whole else "coupled")

    @property
    def published(self) -> dict[str, Any]:
        """What a result says about the draw; empty if nothing is drawn."""
        whose = self.draw if self.ours else "llama.cpp"
        return {"sampling": whose, "seed": self.seed} if self.drawn else {}
