"""The llama.cpp sampler chain that is made from sampler options and a grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp
from llama_cpp import _internals as internals

from pyspec.errors import EngineError, PyspecError
from pyspec.grammar.gbnf import constraint_of
from pyspec.grammar.masks import MaskHook, Masks
from pyspec.sampling.native import BudgetHook, CoupledXtc, Dry, ProcessorHook
from pyspec.sampling.options import DRY_BREAKERS, Sampling
from pyspec.text.budget import Budget

__all__ = ["DRY_BREAKERS", "MIN_TOP_P", "Sampling", "build_chain", "in_force"]

MIN_TOP_P = 1e-9
"""The top_p that leaves one token, as llama.cpp does for 0 and below."""


def build_chain(
    sampling: Sampling,
    llama: Any,
    grammar: Any = None,
    hook: ProcessorHook | None = None,
    tokens: Sequence[int] = (),
    budget: Budget | None = None,
) -> Any:
    """The `LlamaSampler` of llama-cpp-python's `Llama` for these options, or None if none is needed; used inside `in_force`.

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


@contextmanager
def in_force(chain: Any) -> Iterator[None]:
    """Use a chain, then close it; if its grammar failed, that error replaces the engine's."""
    try:
        yield
    except EngineError as error:
        if (cause := error_behind(chain, error)) is error:
            raise
        raise cause from None
    finally:
        if chain is not None:
            chain.close()


def error_behind(chain: Any, error: PyspecError) -> PyspecError:
    """Return why an answer failed: where its grammar did, that error takes the place of the engine's."""
    masks = None if chain is None else chain.masks
    return masks.error if masks is not None and masks.error is not None else error


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
    if not sampling.ours:
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
    if not sampling.ours:
        chain.add_dist(sampling.seed)


def _add_bias(chain: Any, n_vocab: int, bias: Mapping[int, float]) -> None:
    entries = (llama_cpp.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items()):
        entry.token, entry.bias = int(token), float(value)
    sampler = llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), entries)
    llama_cpp.llama_sampler_chain_add(chain.sampler, sampler)
