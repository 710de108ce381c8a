"""The numbers that shape how tokens are chosen, each declared once; every interface derives its options from these.

Before them stand the ranges of other options, which are checked before they reach llama.cpp.

A new one is a field of `SamplerNumbers`: the command line, `/set`, records, HTTP requests and `llm` have it by that, and a test
says where the class's written-out signatures lack it.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pyspec.errors import OptionError

MAX_DRAFT = 64  # most drafted tokens of a sequence in a round; `PS_MAX_DRAFT` in native/pyspec.h
MAX_TOKENS = 2**31 - 1  # longest answer that can be asked for


class Range(NamedTuple):
    """From `low` to `high`, both included; `whole` for integers, `usual` says what is sensible."""

    low: float
    high: float
    whole: bool
    usual: str


RANGES = {
    "n_ctx": Range(0, 1 << 24, True, "0 (as trained) to 16777216 tokens"),
    "n_batch": Range(1, 1 << 20, True, "1 to 1048576"),
    "n_ubatch": Range(1, 1 << 20, True, "1 to 1048576"),
    "pooling_type": Range(
        -1, 4, True, "-1 (the file's), 0 (none), 1 (mean), 2 (first), 3 (last) or 4 (rank)"
    ),
    "rope_scaling_type": Range(
        -1, 3, True, "-1 (the file's), 0 (none), 1 (linear), 2 (YaRN) or 3 (LongRoPE)"
    ),
    "attention_type": Range(-1, 1, True, "-1 (the file's), 0 (causal) or 1 (not causal)"),
    "n_threads": Range(0, 512, True, "1 to 512"),
    "n_threads_batch": Range(0, 512, True, "1 to 512"),
    "n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_n_gpu_layers": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for all"),
    "draft_max": Range(0, (1 << 31) - 1, True, "0 or more"),
    "seed": Range(-math.inf, math.inf, True, "a whole number"),
    "max_tokens": Range(-1, (1 << 31) - 1, True, "0 or more, or -1 for as many as fit"),
    "theta": Range(0.0, 1.0, False, "0 to 1"),
    "gap": Range(0.0, math.inf, False, "0 or more, in nats"),
    "budget": Range(0.0, math.inf, False, "0 or more, in nats"),
    "confirm": Range(0, 16, True, "0 to 16 tokens"),
    "timeout": Range(0.0, 1e9, False, "more than 0 seconds"),
    "wait": Range(0.0, 1e9, False, "True, False or a number of seconds"),
}
"""What llama.cpp and the rules accept; other values make it wrap, assert, or generate nonsense."""

KV_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 20: "IQ4_NL", 30: "BF16",
}  # fmt: skip
"""ggml's numbers of the types that KV caches may have."""

_TYPED = ("type_k", "type_v", "draft_type_k", "draft_type_v")

MAX_BYTES = 127  # longest key or text in llama.cpp's overrides, without the NUL after it


def check_overrides(overrides: Mapping[str, Any] | None) -> tuple[tuple[str, Any], ...]:
    """The pairs of `kv_overrides`. Raises OptionError for one that llama.cpp cannot store."""
    pairs = tuple((overrides or {}).items())
    for key, value in pairs:
        known = isinstance(value, (bool, int, float, str))
        fits = known and not (isinstance(value, int) and abs(value) >= 2**63)
        texts = [text for text in (key, value) if isinstance(text, str)]
        short = all(len(text.encode()) <= MAX_BYTES and "\0" not in text for text in texts)
        if not (fits and key and short):
            raise OptionError(
                f"the override {key[:40]!r} cannot be used",
                f"use a bool, int, float or str; keys and strings have at most {MAX_BYTES} bytes",
            )
    return pairs


def check_ranges(options: Mapping[str, Any]) -> None:
    """Raise OptionError for a number outside its range; skips None, and options without a range."""
    for name in _TYPED:
        if options.get(name) is not None and options[name] not in KV_TYPES:
            usual = ", ".join(f"{number} ({kind})" for number, kind in KV_TYPES.items())
            raise OptionError(f"{name} is {options[name]!r}", f"use {usual}")
    for name, value in options.items():
        allowed = _ALLOWED.get(name)
        if allowed is None or value is None:
            continue
        good = isinstance(value, Integral if allowed.whole else Real)
        if not good or not allowed.low <= value <= allowed.high:  # NaN is not in between either
            raise OptionError(f"{name} is {value!r}", f"use {allowed.usual}")


MAX_BREAKERS, BREAKER_BYTES = 16, 40
"""llama.cpp looks for each breaker in every word of a vocabulary, and truncates longer ones."""


def check_breakers(breakers: Any) -> None:
    """Raise OptionError for an invalid list of DRY sequence breakers."""
    if isinstance(breakers, str) or len(breakers) > MAX_BREAKERS:
        shown, usual = str(breakers)[:40], f"use a list of at most {MAX_BREAKERS} strings"
        raise OptionError(f"dry_sequence_breakers is {shown!r}", usual)
    for word in breakers:
        if not isinstance(word, str) or not 1 <= len(_bytes(word)) <= BREAKER_BYTES or "\0" in word:
            raise OptionError(
                f"dry_sequence_breakers has {str(word)[:40]!r}",
                f"use strings of 1 to {BREAKER_BYTES} bytes without NUL",
            )


def check_bias(bias: Any) -> dict[int, float] | None:
    """Return a `logit_bias` with numbers as keys and values, None if it is empty. Raises OptionError."""
    try:
        pairs = {int(token): float(value) for token, value in (bias or {}).items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        pairs = {0: math.nan}
    if any(math.isnan(value) for value in pairs.values()):
        raise OptionError(f"logit_bias is {str(bias)[:40]}", "give numbers by token id")
    return pairs or None


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return b""


_UNQUANTISED = (None, 0, 1, 30)  # llama.cpp's F32, F16 and BF16


def is_quantised(kind: int | None) -> bool:
    """Whether a type of the KV cache, by ggml's number, is quantised."""
    return kind not in _UNQUANTISED


def check_cache_type(type_v: int | None, flash_attn: bool, name: str = "type_v") -> None:
    """Raise OptionError for a quantised value cache without flash attention, which llama.cpp cannot use."""
    if is_quantised(type_v) and not flash_attn:
        raise OptionError(
            f"{name} is quantised, which needs flash attention, and that is off",
            "turn it on (flash_attn=True, -fa on), or leave the type out",
        )


# -- sampling ----------------------------------------------------------------------------------------------------------

# whose random numbers draw a token: "coupled" are pyspec's, which target and draft share
Noise = Literal["coupled", "llama.cpp"]
# how both choose: each takes its argmax, both draw with the same noise, or only the target draws
Draw = Literal["greedy", "coupled", "apart"]

# the lowest temperature above 0: as a float it must not become 0, nor logits divided by it infinite and so equal
COLDEST = 1e-30
ANY_SEED = 0xFFFFFFFF  # as in llama.cpp, a seed that asks for a random one


class Coupling(NamedTuple):
    """Noise that target and draft share: each takes the argmax of logit / temperature + G(seed, position, id)."""

    seed: int
    temperature: float
    min_p: float  # limits what the draft draws from, as the target's chain does; 0 for no limit
    top_p: float = 0.0  # limits the draft likewise, after `top_k`
    # how many ids of a row the target's chain keeps first, and so the draft; 0 where a sampler before it has to see them all
    top_k: int = 0
    # whether the draft learns a temperature of its own; a text that depends on the draft would change by that
    tempered: bool = False


NOISES: tuple[Noise, ...] = get_args(Noise)


def check_noise(noise: object) -> None:
    """Raise OptionError for an unknown kind of noise; accepts None."""
    if noise is not None and noise not in NOISES:
        raise OptionError(f"sampling is {noise!r}", f"use {' or '.join(NOISES)}")


def derive_seed(seed: int, *names: object) -> int:
    """A 32-bit seed for one of several answers: choices of a request, records of a batch, questions."""
    digest = hashlib.sha256("\0".join(map(str, (seed, *names))).encode()).digest()
    return int.from_bytes(digest[:4], "little")


def chance_seed() -> int:
    """A random 32-bit seed, which can be reported to the user."""
    while (seed := int.from_bytes(os.urandom(4), "little")) == ANY_SEED:
        pass
    return seed


class SamplerOption(NamedTuple):
    """One number."""

    name: str
    kind: type[int | float]
    default: float
    allowed: Range
    help: str  # its meaning in lower case, without a full stop
    word: str  # its name on the command line, beside `aliases`
    aliases: tuple[str, ...]
    usual: tuple[float, float]  # what may be given by hand, where that is less than `allowed`
    suggested: bool  # whether a model's own value is followed
    offered: bool  # whether interfaces other than llama-cpp-python's own have it


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
    """Return a dataclass field that is one of the numbers; one without a meaning for users is offered by no interface of ours."""
    most = usual or allowed[:2]
    made = SamplerOption(
        "", type(default), default, allowed, help_, word, aliases, most, suggested, bool(help_)
    )
    return field(default=default, metadata={"option": made})


def numbers(kind: type[SamplerNumbers]) -> tuple[SamplerOption, ...]:
    """Return the options that the fields of a dataclass declare, in order."""
    found = [(each.name, each.metadata["option"]) for each in fields(kind) if each.metadata]
    return tuple(
        option._replace(name=name, word=option.word or name.replace("_", "-"))
        for name, option in found
    )


_WHOLE = (1 << 31) - 1
_PROBABILITY = Range(0.0, 1.0, False, "0 to 1")


@dataclass(frozen=True)
class SamplerNumbers:
    """Names and defaults are llama-cpp-python's, or else llama-server's; `Sampling` documents them."""

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


NUMBERS = {each.name: each for each in numbers(SamplerNumbers)}  # the options, by name
OFFERED = tuple(each for each in NUMBERS.values() if each.offered)  # those that every interface has
SUGGESTED = tuple(each.name for each in NUMBERS.values() if each.suggested)
"""Names of those that a model may suggest, in the order in which they are told."""

_ALLOWED = RANGES | {each.name: each.allowed for each in NUMBERS.values()}


DRY_BREAKERS = ("\n", ":", '"', "*")  # llama.cpp's default: what ends a repetition


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
            "llama.cpp" gives that library's draws.
        unseeded: Whether nobody asked for this seed.
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
    unseeded: bool = False
    dry_sequence_breakers: Sequence[str] = DRY_BREAKERS

    def __post_init__(self) -> None:
        check_ranges(vars(self))
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
    def draw(self) -> Draw:
        """How target and draft choose."""
        if not self.ours:
            return "apart" if self.drawn else "greedy"
        return "coupled"

    @property
    def coupling(self) -> Coupling | None:
        """What the engine needs to draw; None if llama.cpp draws, or nothing is drawn."""
        if not self.ours:
            return None
        own = (self.temperature, self.min_p, self.top_p) if self.temperature > 0.0 else (1.0, 0.0)
        return Coupling(self.seed, *own)

    def seeded(self) -> Sampling:
        """A copy with a seed that can be reported, if a random one was asked for."""
        if self.seed != ANY_SEED or not self.drawn:
            return self
        return replace(self, seed=chance_seed())

    @property
    def published(self) -> dict[str, Any]:
        """What a result says about the draw; empty if nothing is drawn."""
        whose = self.draw if self.ours else "llama.cpp"
        return {"sampling": whose, "seed": self.seed} if self.drawn else {}


# -- what a model's publisher suggests: `general.sampling.*` of a GGUF file, or the parameters that ollama keeps ----------

_OF_FILE = {"temp": "temperature", "penalty_repeat": "repeat_penalty"}  # files' own keys


def suggested_by(path: Path, name: str = "") -> dict[str, float]:
    """Return what a model's file suggests, by fields of `Sampling`. name: how the user called it, as ollama's models share files.

    Values that are no numbers, or outside the range of their option, are left out.
    """
    from pyspec.gguf.header import facts_of  # noqa: PLC0415 - --help reads no model's file
    from pyspec.machine.others import ollama_params  # noqa: PLC0415

    facts = facts_of(path)
    own = {} if facts is None else facts.sampling
    kept = ollama_params(path, name)
    found = {_OF_FILE.get(key, key): value for key, value in {**own, **kept}.items()}
    return {name: found[name] for name in SUGGESTED if _is_usable(name, found.get(name))}


def suggestion(values: Mapping[str, float], set_by_user: Collection[str] = ()) -> str:
    """Say what holds because the model suggests it; empty if nothing does. set_by_user: fields that the user has set."""
    named = [f"--{NUMBERS[k].word} {v:.6g}" for k, v in values.items() if k not in set_by_user]
    return f"sampling as the model suggests: {' '.join(named)}" if named else ""


def _is_usable(name: str, value: Any) -> bool:
    """Whether a value can be used; 0 for top_p is how some files say that it is off, which is not what it does here."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if (name == "temperature" and value < 0) or (name == "top_p" and value == 0):
        return False
    try:
        check_ranges({name: value})
    except OptionError:
        return False
    return True
