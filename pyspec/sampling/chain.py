"""The llama.cpp sampler chain that is made from sampler options and a grammar, and the samplers that llama-cpp-python lacks."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
from llama_cpp import _internals as internals

from pyspec._lib import ffi, lib
from pyspec.errors import OptionError, PyspecError
from pyspec.grammar.languages import constraint_of
from pyspec.grammar.masks import MaskHook, Masks, SamplerHook, read_candidates
from pyspec.sampling.options import Sampling

if TYPE_CHECKING:
    from pyspec.text.answer import Budget


def refuse(samplers: Iterable[str]) -> None:
    """Raise OptionError for the first sampler that a plain Llama, with llama-cpp-python's own chain, does not have."""
    for name in samplers:
        raise OptionError(
            f"{name} does not work with logits_all or embedding", "load the model without them"
        )


class ProcessorHook(SamplerHook):
    """Runs logits processors in a sampler chain, on the token ids before each row.

    A verified row is sampled after the rows before it were accepted. So the processors see each row once, in order, with the same
    ids as in plain decoding, and nothing beyond the first refused token.
    """

    def __init__(self, processors: Sequence[Any], tokens: Sequence[int]) -> None:
        super().__init__()
        self._processors = list(processors)
        self._ids = np.array(tokens, dtype=np.intc)
        self._n = len(tokens)
        self.error: BaseException | None = None
        """What a processor raised: exceptions cannot pass through llama.cpp, so the caller has to look here."""

    def accept(self, token: int) -> None:
        if self._n == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(self._n + 64, dtype=np.intc)])
        self._ids[self._n] = token
        self._n += 1

    def apply(self, array: Any) -> None:
        if self.error is not None:
            return
        candidates = read_candidates(array)
        logits = np.ascontiguousarray(candidates["logit"])
        try:
            for process in self._processors:
                logits = process(self._ids[: self._n], logits)
            candidates["logit"] = logits
        except BaseException as error:  # noqa: BLE001 - Ctrl-C too is raised where the answer is made
            self.error = error


class BudgetHook(SamplerHook):
    """Leaves only the token that a budget for reasoning says has to come."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def accept(self, token: int) -> None:
        self._budget.accept(token)

    def apply(self, array: Any) -> None:
        token = self._budget.next
        if token is None:
            return
        candidates = read_candidates(array)
        found = candidates["id"] == token
        if np.isfinite(candidates["logit"][found]).any():
            candidates["logit"][~found] = -np.inf
        else:  # a grammar has something else here
            self._budget.give_up()


_CHANCE = -1  # token id that stands for XTC's random choice in the noise: no token has it


def xtc_chance(seed: int, position: int) -> float:
    """Uniform in (0, 1), for the token at this position; independent of the noise that draws it."""
    gumbel = ffi.new("double *")
    lib.ps_noise(seed, position, ffi.new("int32_t *", _CHANCE), 1, gumbel)
    return math.exp(-math.exp(-float(gumbel[0])))


class CoupledXtc(SamplerHook):
    """llama.cpp's XTC, which decides at random whether to exclude anything; here the noise at the token's position decides.

    So the text for a seed stays the same with any draft and in any batch. Rows are sampled in order, each once, which gives the
    position. position: of the first token that is chosen.
    """

    def __init__(self, seed: int, probability: float, threshold: float, position: int) -> None:
        super().__init__()
        self._seed, self._probability, self._position = seed, probability, position
        always = 1.0
        self.inner = llama_cpp.llama_sampler_init_xtc(always, threshold, 1, seed)

    def accept(self, token: int) -> None:
        self._position += 1

    def apply(self, array: Any) -> None:
        if xtc_chance(self._seed, self._position) < self._probability:
            llama_cpp.llama_sampler_apply(self.inner, array)


MIN_TOP_P = 1e-9  # the top_p that leaves one token, as llama.cpp does for 0 and below


def build_chain(
    sampling: Sampling,
    llama: Any,
    grammar: Any = None,
    hook: ProcessorHook | None = None,
    tokens: Sequence[int] = (),
    budget: Budget | None = None,
) -> Any:
    """The `LlamaSampler` of llama-cpp-python's `Llama` for these options, or None if none is needed; the caller closes it.

    If the engine draws, the chain leaves the tokens to draw from, and the engine draws. llama: the `llama_cpp.Llama` whose model
    and vocabulary the chain needs. grammar: a `Constraint` or a `LlamaGrammar`. hook: logits processors, which come first.
    tokens: the prompt's. budget: for its reasoning. Raises InputError for a grammar that cannot be used.
    """
    raw = sampling.greedy or (sampling.ours and sampling.temperature < 0.0 and not sampling.shaped)
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


def error_behind(chain: Any, error: PyspecError) -> PyspecError:
    """Return why an answer failed: where its grammar did, that error takes the place of the engine's."""
    masks = None if chain is None else chain.masks
    return masks.error if masks is not None and masks.error is not None else error


class Dry:
    """The DRY sampler of a model's last answer that had one, without its tokens, to be copied for the next.

    Looking for breakers in each of 49,000 words takes 27 ms.
    """

    def __init__(self, vocab: Any, *how: Any) -> None:
        *numbers, breakers = self.how = how
        words = [word.encode() for word in breakers]
        array = (ctypes.c_char_p * len(words))(*words)
        self.sampler = llama_cpp.llama_sampler_init_dry(vocab, *numbers, array, len(words))

    def __del__(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)


_last_dry: weakref.WeakKeyDictionary[Any, Dry] = weakref.WeakKeyDictionary()
"""By `llama_cpp.Llama`."""


def _add_dry(chain: Any, sampling: Sampling, llama: Any, tokens: Sequence[int]) -> None:
    """Add DRY, which has read the prompt as in llama-server."""
    last, most = sampling.dry_penalty_last_n, llama.n_ctx()
    # it allocates memory for this many, and the context holds no more
    last = most if last < 0 else min(last, most)
    numbers = sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length, last
    how = *numbers, tuple(sampling.dry_sequence_breakers)
    dry = _last_dry.get(llama)
    if dry is None or dry.how != how:
        dry = _last_dry[llama] = Dry(llama._model.vocab, *how)
    sampler = llama_cpp.llama_sampler_clone(dry.sampler)
    for token in tokens[-last:]:
        llama_cpp.llama_sampler_accept(sampler, int(token))
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)


def _add_choice(chain: Any, sampling: Sampling, n_vocab: int, position: int) -> None:
    if sampling.temperature == 0.0:
        chain.add_greedy()
    elif sampling.temperature > 0.0 and sampling.mirostat_mode in (1, 2):
        how = sampling.seed, sampling.mirostat_tau, sampling.mirostat_eta
        if sampling.mirostat_mode == 1:
            chain.add_mirostat(n_vocab, *how, 100)
        else:
            chain.add_mirostat_v2(*how)
    else:
        if sampling.temperature > 0.0:
            _add_truncation(chain, sampling, position)
        if not sampling.ours:
            chain.add_dist(sampling.seed)


def _add_truncation(chain: Any, sampling: Sampling, position: int) -> None:
    chain.add_top_k(sampling.top_k)
    if sampling.typical_p < 1.0:
        chain.add_typical(sampling.typical_p, 1)
    chain.add_top_p(sampling.top_p, 1)
    chain.add_min_p(sampling.min_p, 1)
    how = sampling.xtc_probability, sampling.xtc_threshold
    if sampling.excluding and sampling.ours:
        xtc = CoupledXtc(sampling.seed, *how, position)
        chain._exit_stack.callback(llama_cpp.llama_sampler_free, xtc.inner)
        _add_own(chain, xtc)
    elif sampling.excluding:
        chain.add_xtc(*how, 1, sampling.seed)
    if sampling.dynatemp_range:
        own = sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent
        chain.add_temp_ext(*own)
    else:
        chain.add_temp(sampling.temperature)


def _add_bias(chain: Any, n_vocab: int, bias: Mapping[int, float]) -> None:
    entries = (llama_cpp.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items()):
        entry.token, entry.bias = int(token), float(value)
    sampler = llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), entries)
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)
