"""Drafts drawn with the target's noise keep the target's distribution: draws of two tokens against their joint distribution.

2,000 draws of some cases, and of the controls that must fail; 20,000 draws of every case where slow tests run.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest
from helpers import devices, tiny

from pyspec._lib import address, ffi, lib
from pyspec.batch.contexts import Contexts, Layout, Models
from pyspec.batch.room import padded
from pyspec.engine.handle import Gate
from pyspec.engine.runs import Run
from pyspec.grammar.gbnf import of_gbnf
from pyspec.grammar.languages import Constraint
from pyspec.policy.simple import FixedPolicy
from pyspec.sampling.chain import Sampling, build_chain
from pyspec.sampling.native import xtc_chance
from pyspec.sampling.verification import Strict

pytestmark = devices.for_processors(
    "thousands of answers, each decode over a socket; what draws gets logits on the host, wherever layers lie"
)

N_DRAWS, MANY = 2_000, 20_000
PROMPT = [tiny.A + i for i in (0, 1, 2, 0, 1, 2, 0, 1)]  # lookup has something to go on from
GRAMMAR = "root ::= [a-e] [c-j]+"
LETTERS = [list(range(tiny.A, tiny.A + 5)), list(range(tiny.A + 2, tiny.A + 10))]
WIDE = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
DRY = {"dry_multiplier": 0.4, "dry_base": 1.3, "dry_allowed_length": 1, "dry_penalty_last_n": 7}
XTC = {"xtc_probability": 0.6, "xtc_threshold": 0.08}
PENALTIES = {"repeat_penalty": 1.5, "frequency_penalty": 0.7, "presence_penalty": 0.3}


def sized(*cases, few):
    """Parameters: each case with MANY draws, slow, and those at the places `few` with N_DRAWS as well."""
    many = [pytest.param(*case, MANY, marks=pytest.mark.slow) for case in cases]
    return [pytest.param(*cases[i], N_DRAWS) for i in few] + many


# -- the distribution, by definition -----------------------------------------------------------------------------------


def softmax(logits):
    """Probabilities of logits, -inf for what cannot be."""
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def keep(logits, where):
    return np.where(where, logits, -np.inf)


def repetitions(text, breakers):
    """By token, how many of the text's last ones it would prolong a repetition of; none is longer than what a breaker leaves."""
    fresh = next((n for n, token in enumerate(reversed(text)) if token in breakers), len(text))
    found = Counter()
    for at, token in enumerate(text[1:], 1):
        same = next((n for n in range(at) if text[at - 1 - n] != text[-1 - n]), at)
        found[token] = max(found[token], min(same, fresh))
    return {token: n for token, n in found.items() if token not in breakers}


def dried(z, sampling, text):
    """Logits less what DRY takes: https://github.com/oobabooga/text-generation-webui/pull/5677."""
    last = len(text) if sampling.dry_penalty_last_n < 0 else sampling.dry_penalty_last_n
    breakers = [
        tiny.A + ord(word) - ord("a") for word in sampling.dry_sequence_breakers if word in "abc"
    ]
    for token, n in repetitions(text[-last:], breakers).items():
        if n >= sampling.dry_allowed_length:
            z[token] -= sampling.dry_multiplier * sampling.dry_base ** (
                n - sampling.dry_allowed_length
            )


def excluded(z, threshold):
    """Logits without those of the likeliest tokens: https://github.com/oobabooga/text-generation-webui/pull/6335."""
    p = softmax(z)
    least = p[p >= threshold].min(initial=1.0)
    return keep(z, p <= least)


def heat(z, sampling):
    """The temperature where a row is as unsure: its entropy over the largest there could be, to a power."""
    p = softmax(z)
    p = p[p > 0]
    unsure = -(p * np.log(p)).sum() / math.log(len(p)) if len(p) > 1 else 0.0
    low, span = sampling.temperature - sampling.dynatemp_range, 2 * sampling.dynatemp_range
    return low + span * unsure**sampling.dynatemp_exponent


def typical(z, share):
    """Those whose surprise is nearest to the row's entropy, until they have more than the share."""
    p = softmax(z)
    surprise = -np.log(np.maximum(p, 1e-300))
    order = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
    return keep(z, np.isin(np.arange(len(z)), order[before <= share]))


def distribution(row, sampling, emitted, allowed):
    """What the target says of a token by these options: bias, penalties, DRY, grammar, truncation, XTC, temperature."""
    z = row.astype(np.float64)
    for token, bias in (sampling.logit_bias or {}).items():
        z[token] += bias
    for token in set(emitted) if sampling.penalised else ():
        z[token] = (
            z[token] / sampling.repeat_penalty
            if z[token] > 0
            else z[token] * sampling.repeat_penalty
        )
        z[token] -= emitted.count(token) * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.dry:
        dried(z, sampling, [*PROMPT, *emitted])
    if allowed is not None:
        z = keep(z, np.isin(np.arange(len(z)), allowed))
    if sampling.temperature < 0:
        return softmax(z)
    order = np.argsort(-z, kind="stable")
    rank = np.argsort(order)
    if sampling.top_k:
        z = keep(z, rank < sampling.top_k)
    if sampling.typical_p < 1.0:
        z = typical(z, sampling.typical_p)
    before = np.cumsum(softmax(z)[order])[rank] - softmax(z)
    z = keep(z, before < sampling.top_p)
    if sampling.min_p:
        z = keep(z, z >= z.max() + math.log(sampling.min_p))
    without = excluded(z, sampling.xtc_threshold)
    p = sampling.xtc_probability
    return (1 - p) * softmax(z / heat(z, sampling)) + p * softmax(without / heat(without, sampling))


def pairs(path, sampling, letters=None):
    """Probability of each two tokens after the prompt, from llama-cpp-python's own rows."""
    llm = llama_cpp.Llama(
        str(path), n_ctx=64, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False
    )
    letters = letters or (None, None)

    def row(text):
        llm.reset()
        llm.eval(text)
        return np.array(llm.scores[len(text) - 1])

    first = distribution(row(PROMPT), sampling, [], letters[0])
    found = {}
    for one in np.flatnonzero(first > 0).tolist():
        second = distribution(row([*PROMPT, one]), sampling, [one], letters[1])
        found |= {
            (one, two): first[one] * second[two] for two in np.flatnonzero(second > 0).tolist()
        }
    llm.close()
    return found


# -- and the draws -----------------------------------------------------------------------------------------------------


class Source:
    """Two tokens after the prompt at many seeds, through the engine's own rounds."""

    def __init__(self, path, draft, n_seq, sampling, grammar=None, length=2):
        self._stack = ExitStack()
        models = Models(str(path), str(draft), "none", n_threads=1, n_threads_batch=1, trust=True)
        self._stack.enter_context(closing(models))
        layout = Layout(padded(64 * n_seq))
        self.contexts = self._stack.enter_context(closing(Contexts(models, n_seq, 64, layout)))
        self.sampling, self.target, self.length = sampling, models.target, length
        self.grammar = Constraint(of_gbnf(grammar)) if grammar else None
        self.chains = [None] * n_seq
        self.drafted = self.accepted = 0

    def close(self):
        for chain in self.chains:
            if chain is not None:
                chain.close()
        self._stack.close()

    def pairs(self, n):
        """Counts of what came at seeds 0 to n - 1."""
        counts, n_seq = Counter(), len(self.chains)
        for seed in range(0, n, n_seq):
            runs = [self._run(seq, seed + seq) for seq in range(n_seq)]
            self._answer(runs)
            counts.update(tuple(run.tokens[len(PROMPT) :][:2]) for run in runs)
        return counts

    def _run(self, seq, seed):
        if self.chains[seq] is not None:
            self.chains[seq].close()
        sampling = replace(self.sampling, seed=seed)
        chain = build_chain(sampling, self.target, self.grammar, tokens=PROMPT)
        self.chains[seq] = chain
        self.contexts.engine.set_tokens(seq, PROMPT)
        run = Run(seq, list(PROMPT), Gate(Strict(), sampled=False), self.length + 1)
        run.sampler = 0 if chain is None else address(chain.sampler)
        run.coupling = sampling.coupling
        run.tally.rounds = 1  # or its first round would not draft
        return run

    def _answer(self, runs):
        policy, live = FixedPolicy(self.length), runs
        while live := [run for run in live if len(run.tokens) < len(PROMPT) + 2]:
            for run in live:  # an end is a token like others
                run.finish_reason = None
            fills = [(run.seq, missing, -1) for run in live if (missing := self._missing(run))]
            if fills:
                self.contexts.engine.verify(fills)
            self.contexts.loop.round(live, policy)
        for run in runs:
            self.drafted += run.tally.drafted
            self.accepted += run.tally.accepted

    def _missing(self, run):
        return len(run.tokens) - 1 - self.contexts.engine.held(0, run.seq)


def apart(counts, expected):
    """How far counts are from what is expected: Pearson's chi-square and G, in standard deviations (Wilson, Hilferty 1931).

    Cells of fewer than 8 are one.
    """
    if set(counts) - set(expected):
        return math.inf
    n = sum(counts.values())
    cells = [(counts[cell], n * p) for cell, p in expected.items() if n * p >= 8]
    rest = n - sum(seen for seen, _ in cells), n - sum(due for _, due in cells)
    cells += [rest] if rest[1] >= 8 else []
    chi = sum((seen - due) ** 2 / due for seen, due in cells)
    g = 2 * sum(seen * math.log(seen / due) for seen, due in cells if seen)
    df = len(cells) - 1
    return max(((x / df) ** (1 / 3) - 1 + 2 / (9 * df)) / math.sqrt(2 / (9 * df)) for x in (chi, g))


LIMIT = 4.0
"""Standard deviations; by chance one case in 15,000, and seeds are fixed."""


@pytest.fixture(scope="module")
def draft(tiny_folder):
    return tiny.write(tiny_folder / "coupled-draft.gguf", noise=0.1)


@pytest.mark.parametrize(
    ("options", "grammar", "n_draws"),
    sized(
        ({"temperature": 0.5}, None),
        ({"temperature": 1.0}, None),
        ({"temperature": 2.0}, None),
        ({"temperature": -1.0}, None),
        ({"top_k": 4}, None),
        ({"top_p": 0.7}, None),
        ({"min_p": 0.1}, None),
        ({"typical_p": 0.6}, None),
        ({"typical_p": 0.9, "top_k": 20, "top_p": 0.9}, None),
        ({"logit_bias": {tiny.A: 1.5, tiny.A + 1: -2.0, tiny.A + 7: 3.0}}, None),
        ({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}, None),
        (PENALTIES, None),
        ({}, GRAMMAR),
        (DRY, None),
        ({**DRY, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["a"]}, None),
        (XTC, None),
        ({"dynatemp_range": 0.9, "dynatemp_exponent": 1.5}, None),
        ({**PENALTIES, **DRY, **XTC, "dynatemp_range": 0.5, "top_k": 12, "min_p": 0.02}, GRAMMAR),
        few=(1, 8, 10, 17),
    ),
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_texts_have_the_targets_distribution(tiny_target, draft, options, grammar, n_draws):
    """Whatever shapes the distribution, with a draft model that draws, forty sequences in a batch."""
    sampling = replace(WIDE, **options)
    expected = pairs(tiny_target, sampling, LETTERS if grammar else None)
    with closing(Source(tiny_target, draft, 40, sampling, grammar)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, expected) < LIMIT
    assert 0.05 * source.drafted < source.accepted < 0.95 * source.drafted


@pytest.fixture(scope="module")
def headed(tiny_folder):
    """A target with a next-token head of its own."""
    return tiny.write(tiny_folder / "coupled-headed.gguf", arch="qwen35", n_layer=4, n_heads=1)


@pytest.mark.parametrize(
    ("kind", "n_seq", "n_draws"),
    sized(("none", 40), ("lookup", 40), ("eagle3", 20), ("mtp", 20), few=(1, 2)),
)
def test_every_drafter_keeps_the_distribution(
    tiny_target, tiny_eagle3, headed, kind, n_seq, n_draws
):
    """By lookup, by heads that read the target's states, and by nobody."""
    target = headed if kind == "mtp" else tiny_target
    sampling = replace(WIDE, temperature=1.5)
    with closing(
        Source(target, tiny_eagle3 if kind == "eagle3" else kind, n_seq, sampling)
    ) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(target, sampling)) < LIMIT
    assert (source.drafted > 0) is (kind != "none")


@pytest.mark.parametrize(
    ("options", "n_draws"),
    sized(
        ({},),
        ({**PENALTIES, "typical_p": 0.8, "logit_bias": {tiny.A: 2.0}, "min_p": 0.02},),
        few=(1,),
    ),
)
def test_long_drafts_keep_the_distribution(tiny_target, draft, options, n_draws):
    """Of four tokens in a round, of which the first two are looked at."""
    sampling = replace(WIDE, **options)
    with closing(Source(tiny_target, draft, 20, sampling, length=4)) as source:
        counts = source.pairs(n_draws)
    assert apart(counts, pairs(tiny_target, sampling)) < LIMIT
    assert source.drafted > 4 * n_draws


# -- the same test catches a wrong coupling ------------------------------------------------------------------------------


def by_hand(source, n, position):
    """The same draws with the noise of `position(place, began)` for the token at `place`; the round began at `began`."""
    engine, how, out = source.contexts.engine, ffi.new("ps_coupling *"), ffi.new("ps_row *")
    counts = Counter()
    for seed in range(n):
        text, (how.seed, how.temperature, how.min_p) = list(PROMPT), (seed, 1.0, 0.0)
        while len(text) < len(PROMPT) + 2:
            engine.set_tokens(0, text)
            while (held := engine.held(0, 0)) < len(text) - 1:
                engine.verify([(0, len(text) - 1 - held, -1)])
            engine.draft([0], [1])
            engine.verify([(0, 0, 1)])
            began, drafted = len(text), engine.drafted(0).token[0]
            for i in range(2):
                row = engine.row(0, i)
                view = ffi.from_buffer("float[]", row)
                lib.ps_draw(view, len(row), how, position(began + i, began), out)
                text.append(out.first)
                if out.first != drafted:
                    break
        counts[tuple(text[len(PROMPT) :][:2])] += 1
    return counts


@pytest.mark.parametrize(
    ("position", "passes"),
    [(max, True), (min, False)],
    ids=["of its own position", "of the round's first position"],
)
def test_wrong_coupling_fails_the_same_test(tiny_target, draft, position, passes):
    """Noise that is used at two places ties their tokens together, which the two tokens' joint distribution shows."""
    expected = pairs(tiny_target, WIDE)
    with closing(Source(tiny_target, draft, 1, WIDE)) as source:
        counts = by_hand(source, N_DRAWS, position)
    assert (apart(counts, expected) < LIMIT) is passes


@pytest.mark.parametrize(("position", "passes"), [(lambda at: at, True), (lambda _: 0, False)])
def test_wrong_chance_of_xtc_fails_the_same_test(tiny_target, draft, position, passes, monkeypatch):
    """One chance for a whole text ties its tokens together, too."""
    monkeypatch.setattr(
        "pyspec.sampling.native.xtc_chance", lambda seed, at: xtc_chance(seed, position(at))
    )
    sampling = replace(WIDE, **XTC)
    with closing(Source(tiny_target, draft, 40, sampling)) as source:
        counts = source.pairs(N_DRAWS)
    assert bool(apart(counts, pairs(tiny_target, sampling)) < LIMIT) is passes
