"""Strict speculation keeps the target's distribution, whatever draws up the schedule."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import llama_cpp
import numpy as np
import pytest
from helpers import tiny
from helpers.answers import ask

from pyspec._lib import address
from pyspec.draft.simple import LengthPolicy
from pyspec.draft.types import Plan
from pyspec.engine.handle import Engine, Role
from pyspec.sampling.chain import Sampling
from pyspec.sampling.options import NOISES

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
N_TOKENS, WIDTH, N_SEEDS = 4, 2, 1200
TOP2 = Sampling(temperature=1.0, top_k=WIDTH, top_p=1.0, min_p=0.0)
CRITICAL = 37.7
"""Chi-square with 15 degrees of freedom exceeds this once in 1000 times."""


def softmax_top2(row):
    """Probabilities of a row that is cut to its two largest logits, as a dict."""
    top = np.argsort(-row)[:WIDTH]
    weights = np.exp(row[top].astype(np.float64) - row[top[0]])
    return dict(zip(top.tolist(), (weights / weights.sum()).tolist()))


@pytest.fixture(scope="module")
def flat_target(tiny_folder):
    """A tiny model whose logits lie close, so that every sequence has a chance."""
    return tiny.write(tiny_folder / "flat-target.gguf", scale=1.0)


@pytest.fixture(scope="module")
def flat_draft(tiny_folder):
    return tiny.write(tiny_folder / "flat-draft.gguf", scale=1.0, noise=0.15)


@pytest.fixture(scope="module")
def flat_companion(tiny_folder):
    return tiny.write(tiny_folder / "flat-companion.gguf", scale=1.0, noise=0.15, noise_seed=2)


@pytest.fixture(scope="module")
def expected(flat_target):
    """Probability of each of the 16 sequences, from llama-cpp-python's own logits."""
    llm = llama_cpp.Llama(
        str(flat_target), n_ctx=64, logits_all=True, n_threads=1, n_threads_batch=1, verbose=False
    )
    found = {(): 1.0}
    for _ in range(N_TOKENS):
        longer = {}
        for prefix, p in found.items():
            llm.reset()
            llm.eval([*PROMPT, *prefix])
            row = np.array(llm.scores[llm.n_tokens - 1])
            longer |= {(*prefix, token): p * q for token, q in softmax_top2(row).items()}
        found = longer
    llm.close()
    return found


def chi_square(counts, expected):
    """Pearson's statistic over the cells of `expected`; infinite if something impossible came."""
    n = sum(counts.values())
    if set(counts) - set(expected):
        return np.inf
    return sum((counts[cell] - n * p) ** 2 / (n * p) for cell, p in expected.items())


class Nosy(LengthPolicy):
    """A schedule made of everything it may see: probabilities, the companion's view, what was accepted."""

    def __init__(self):
        super().__init__()
        self._accepted = 0

    def plan(self, places):
        """1 to 3 tokens, with the companion at times: all by what was accepted so far."""
        length = 1 + (self._accepted + places[0].depth) % 3
        return Plan(
            [min(length, place.room) for place in places], use_companion=self._accepted % 2 == 0
        )

    def choose(self, drafts):
        """Any number of them, by everything the models said."""
        return [self._length(draft) for draft in drafts]

    def _length(self, draft):
        seen = [
            *draft.p,
            *(draft.s or ()),
            *(draft.a or ()),
            *(draft.pc or ()),
            *(draft.agree or ()),
        ]
        return int(1e4 * sum(seen)) % (draft.n + 1)

    def observe(self, outcome):
        self._accepted += sum(seq.n_accepted for seq in outcome.seqs)


def sampled_counts(llm):
    """How often each sequence came, over seeds."""
    sampling = TOP2.__dict__
    return Counter(
        tuple(ask(llm, PROMPT, N_TOKENS, Sampling(**{**sampling, "seed": seed})).ids)
        for seed in range(N_SEEDS)
    )


def test_plain_sampling_has_the_expected_distribution(open_llama, flat_target, expected):
    """The control: without a draft the test passes."""
    assert chi_square(sampled_counts(open_llama(flat_target)), expected) < CRITICAL


def test_expected_distribution_is_worth_testing(expected):
    """16 sequences, none of them so rare that the statistic would mean nothing."""
    assert len(expected) == WIDTH**N_TOKENS
    assert min(expected.values()) * N_SEEDS > 10


def test_speculation_keeps_the_distribution(open_llama, flat_target, flat_draft, expected):
    """At temperature 1, three drafted tokens a round."""
    llm = open_llama(flat_target, draft=flat_draft, length="fixed:3")
    assert chi_square(sampled_counts(llm), expected) < CRITICAL


def test_schedule_driven_by_everything_keeps_the_distribution(
    open_llama, flat_target, flat_draft, flat_companion, expected, monkeypatch
):
    """The schedule sees drafted tokens through the models' eyes before they are verified, and it does not matter."""
    llm = open_llama(flat_target, draft=flat_draft, companion=flat_companion)
    nosy, drafted, verified = Nosy(), 0, 0
    monkeypatch.setattr(llm.policies, "of", lambda *_: nosy)
    counts = Counter()
    for seed in range(N_SEEDS):
        counts[
            tuple(ask(llm, PROMPT, N_TOKENS, Sampling(**{**TOP2.__dict__, "seed": seed})).ids)
        ] += 1
        drafted += llm.last_speculation["drafted"]
        verified += llm.last_speculation["verified"]
    assert 0.1 * drafted < verified < 0.9 * drafted
    assert chi_square(counts, expected) < CRITICAL


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 1.3, "min_p": 0.0}, {"temperature": -1.0}, {"top_k": 5}]
)
def test_same_seed_same_text(open_llama, tiny_target, tiny_draft, seed, sampling):
    """One draw a token, drafted or not: a seed gives the text that it gives without speculation."""
    sampling = Sampling(seed=seed, **sampling)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    assert ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling).ids == plain.ids


@pytest.mark.parametrize(
    "shape",
    [
        {"repeat_penalty": 1.3},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5},
        {"logit_bias": {5: 3.0, 7: -100.0}},
        {"mirostat_mode": 1},
        {"mirostat_mode": 2},
        {"typical_p": 0.7},
        {"dry_multiplier": 0.8},
        {"dry_multiplier": 2.0, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["b"]},
        {"xtc_probability": 0.5},
        {"dynatemp_range": 0.6, "dynatemp_exponent": 0.7},
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("noise", [noise for noise in NOISES if noise != "block"])
def test_same_seed_same_text_with_every_sampler(
    open_llama, tiny_target, tiny_draft, shape, temperature, noise
):
    """Samplers that remember what was emitted see the same tokens in the same order, and draw once for each."""
    sampling = Sampling(temperature=temperature, seed=7, noise=noise, **shape)
    plain = ask(open_llama(tiny_target), PROMPT, 60, sampling)
    assert ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling).ids == plain.ids


# -- the same test catches a wrong rule --------------------------------------------------------------------------------


def compare(p, _q, drafted, rng):
    """The rule in force: draw from the target, accept where it is the drafted token."""
    token = int(rng.choice(list(p), p=list(p.values())))
    return token == drafted, token


def ratio(p, q, drafted, rng):
    """Rejection sampling by p/q, wrong here: q says how sure the draft was, but it drafted its argmax, not a sample."""
    if rng.random() < min(1.0, p.get(drafted, 0.0) / q[drafted]):
        return True, drafted
    left = {token: max(0.0, chance - q.get(token, 0.0)) for token, chance in p.items()}
    total = sum(left.values())
    left = {token: chance / total for token, chance in left.items()} if total else p
    return False, int(rng.choice(list(left), p=list(left.values())))


@pytest.mark.parametrize(("rule", "passes"), [(compare, True), (ratio, False)])
def test_wrong_acceptance_fails_the_same_test(
    open_plain, open_llama, flat_target, flat_draft, expected, rule, passes
):
    """p/q acceptance of greedy drafts, on the engine's own rows, is caught; comparing passes the very same harness."""
    target, draft = open_llama(flat_target), open_plain(flat_draft)
    rng = np.random.default_rng(5)
    with closing(Engine(1, tiny.N_VOCAB)) as engine:
        engine.attach(Role.TARGET, address(target.ctx), address(target.model))
        engine.attach(Role.DRAFT, address(draft.ctx), address(draft.model))
        engine.set_stop([0.0], None)
        counts = Counter(tuple(judged(engine, rule, rng)) for _ in range(N_SEEDS))
    assert (chi_square(counts, expected) < CRITICAL) is passes


def judged(engine, rule, rng):
    """One answer of N_TOKENS by hand: the engine drafts and verifies, `rule` accepts."""
    text = list(PROMPT)
    while len(text) < len(PROMPT) + N_TOKENS:
        engine.set_tokens(0, text)
        engine.draft([0], [2])
        view = engine.drafted(0)
        drafted, sure = [view.token[i] for i in range(view.n)], [view.p[i] for i in range(view.n)]
        engine.verify([(0, 0, view.n)])
        for i in range(len(drafted) + 1):
            p = softmax_top2(engine.row(0, i))
            if i == len(drafted):
                text.append(int(rng.choice(list(p), p=list(p.values()))))
                break
            accepted, token = rule(p, {drafted[i]: sure[i]}, drafted[i], rng)
            text.append(token)
            if not accepted:
                break
    return text[len(PROMPT) : len(PROMPT) + N_TOKENS]
