"""How an answer's tokens are chosen: sampler options, and the llama.cpp sampler chain made from them and a grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp
from llama_cpp import _internals as internals

from pyspec.errors import EngineError, OptionError
from pyspec.grammar.gbnf import constraint_of
from pyspec.grammar.masks import MaskHook, Masks
from pyspec.sampling.limits import check_bias, check_breakers, check_ranges
from pyspec.sampling.native import BudgetHook, CoupledXtc, Dry, ProcessorHook
from pyspec.sampling.noise import ANY_SEED, COLDEST, Coupling, Draw, Noise, chance_seed, check_noise
from pyspec.sampling.options import NUMBERS, SamplerNumbers, check_numbers
from pyspec.text.budget import Budget

MIN_TOP_P = 1e-9
"""The top_p that leaves one token, as llama.cpp does for 0 and below."""

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
        noise: "coupled" draws with random numbers that target and draft share, so that a seed gives the same text with any draft;
            "llama.cpp" gives that library's draws.
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
    noise: Noise = "coupled"
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
        told = self.penalised or self.dry or bool(self.logit_bias)
        return told or self.excluding or self._mirostat

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
    def coupled(self) -> bool:
        """Whether tokens are drawn with noise that drafts share."""
        return self.noise == "coupled" and self.drawn and not self._mirostat

    @property
    def draw(self) -> Draw:
        """How target and draft choose: both take their argmax, both draw with the same noise, or the target draws alone."""
        return "coupled" if self.coupled else "apart" if self.drawn else "greedy"

    @property
    def coupling(self) -> Coupling | None:
        """What the engine needs for coupled noise; None if llama.cpp draws, or nothing is drawn."""
        own = (self.temperature, self.min_p, self.top_p) if self.temperature > 0.0 else (1.0, 0.0)
        return Coupling(self.seed, *own) if self.coupled else None

    def seeded(self) -> Sampling:
        """A copy with a seed that can be reported, if a random one was asked for."""
        if self.seed != ANY_SEED or not self.drawn:
            return self
        return replace(self, seed=chance_seed())

    @property
    def published(self) -> dict[str, Any]:
        """What a result says about the draw; empty if nothing is drawn."""
        whose = "coupled" if self.coupled else "llama.cpp"
        return {"sampling": whose, "seed": self.seed} if self.drawn else {}


def build_chain(
    sampling: Sampling,
    llama: Any,
    grammar: Any = None,
    hook: ProcessorHook | None = None,
    tokens: Sequence[int] = (),
    budget: Budget | None = None,
) -> Any:
    """The `LlamaSampler` of llama-cpp-python's `Llama` for these options, or None if none is needed; used inside `in_force`.

    If noise is coupled, the chain leaves the tokens to draw from, and the engine draws. llama: the `llama_cpp.Llama` whose model
    and vocabulary the chain needs. grammar: a `Constraint` or a `LlamaGrammar`. hook: logits processors, which come first.
    tokens: the prompt's. budget: for its reasoning. Raises InputError for a grammar that cannot be used.
    """
    raw = sampling.greedy or (
        sampling.coupled and sampling.temperature < 0.0 and not sampling.shaped
    )
    if raw and grammar is None and hook is None and budget is None:
        return None
    chain = internals.LlamaSampler()
    chain.masks = None
    if hook is not None:
        _add_own(chain, hook)
    if sampling.logit_bias:
        _add_bias(chain, llama.n_vocab(), sampling.logit_bias)
    if sampling.penalised:
        chain.add_penalties(
            n_vocab=llama.n_vocab(),
            penalty_last_n=llama.last_n_tokens_size,
            penalty_repeat=sampling.repeat_penalty,
            penalty_freq=sampling.frequency_penalty,
            penalty_present=sampling.presence_penalty,
        )
    if sampling.dry:
        _add_dry(chain, sampling, llama, tokens)
    if grammar is not None:
        chain.masks = MaskHook(Masks(constraint_of(grammar), llama))
        _add_own(chain, chain.masks)
    if budget is not None:
        _add_own(chain, BudgetHook(budget))
    _add_choice(chain, sampling, llama.n_vocab(), len(tokens))
    return chain


def _add_own(chain: Any, sampler: Any) -> None:
    """Add a sampler in Python, which we free, not llama.cpp."""
    at = llama_cpp.llama_sampler_chain_n(chain.sampler)
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler.get_sampler())
    chain.custom_samplers.append((at, sampler))


@contextmanager
def in_force(chain: Any) -> Iterator[None]:
    """Use a chain, then close it; if its grammar failed, that error replaces the engine's."""
    try:
        yield
    except EngineError:
        masks = None if chain is None else chain.masks
        if masks is None or masks.error is None:
            raise
        raise masks.error from None
    finally:
        if chain is not None:
            chain.close()


def _add_dry(chain: Any, sampling: Sampling, llama: Any, tokens: Sequence[int]) -> None:
    """Add DRY, which has read the prompt as in llama-server."""
    last, most = sampling.dry_penalty_last_n, llama.n_ctx()
    # it allocates memory for this many, and the context holds no more
    last = most if last < 0 else min(last, most)
    numbers = sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length, last
    sampler = Dry.of(llama).sampler(llama._model.vocab, numbers, sampling.dry_sequence_breakers)
    for token in tokens[-last:]:
        llama_cpp.llama_sampler_accept(sampler, int(token))
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)


def _add_xtc(chain: Any, sampling: Sampling, position: int) -> None:
    how = sampling.xtc_probability, sampling.xtc_threshold
    if not sampling.coupled:
        chain.add_xtc(*how, 1, sampling.seed)
        return
    xtc = CoupledXtc(sampling.seed, *how, position)
    chain._exit_stack.callback(xtc.close)
    _add_own(chain, xtc)


def _add_choice(chain: Any, sampling: Sampling, n_vocab: int, position: int) -> None:
    if sampling.temperature == 0.0:
        chain.add_greedy()
    elif sampling.temperature < 0.0:
        _add_draw(chain, sampling)
    elif sampling.mirostat_mode == 1:
        chain.add_mirostat(
            n_vocab, sampling.seed, sampling.mirostat_tau, sampling.mirostat_eta, 100
        )
    elif sampling.mirostat_mode == 2:
        chain.add_mirostat_v2(sampling.seed, sampling.mirostat_tau, sampling.mirostat_eta)
    else:
        chain.add_top_k(sampling.top_k)
        if sampling.typical_p < 1.0:
            chain.add_typical(sampling.typical_p, 1)
        chain.add_top_p(sampling.top_p, 1)
        chain.add_min_p(sampling.min_p, 1)
        if sampling.excluding:
            _add_xtc(chain, sampling, position)
        if sampling.dynatemp_range:
            own = sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
            chain.add_temp_ext(*own)
        else:
            chain.add_temp(sampling.temperature)
        _add_draw(chain, sampling)


def _add_draw(chain: Any, sampling: Sampling) -> None:
    if not sampling.coupled:
        chain.add_dist(sampling.seed)


def _add_bias(chain: Any, n_vocab: int, bias: Mapping[int, float]) -> None:
    entries = (llama_cpp.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items()):
        entry.token, entry.bias = int(token), float(value)
    sampler = llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), entries)
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)
