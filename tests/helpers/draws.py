"""Draws of tokens against their joint distribution, which is computed from llama-cpp-python's own rows by definition."""

import math
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest

from helpers import devices, tiny
from pyspec.draft.simple import FixedPolicy
from pyspec.engine.contexts import Contexts, Layout, Models, padded
from pyspec.engine.options import AnswerOptions
from pyspec.grammar.languages import Constraint, of_gbnf
from pyspec.sampling.options import Sampling

PROMPT = [tiny.A + i for i in (0, 1, 2, 0, 1, 2, 0, 1)]  # lookup has something to go on from
WIDE = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
N_DRAWS, MANY = 2_000, 20_000
MANY_ANSWERS = devices.for_processors(
    "thousands of answers, each decode over a socket; what draws gets logits on the host, wherever layers lie"
)


def sized(*cases, few):
    """Parameters: each case with MANY draws, slow, and those at the places `few` with N_DRAWS as well."""
    many = [pytest.param(*case, MANY, marks=pytest.mark.slow) for case in cases]
    return [pytest.param(*cases[i], N_DRAWS) for i in few] + many


def softmax(logits):
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
    words = [word for word in sampling.dry_sequence_breakers if word in "abc"]
    breakers = [tiny.A + "abc".index(word) for word in words]
    for token, n in repetitions(text[-last:], breakers).items():
        more = n - sampling.dry_allowed_length
        if more >= 0:
            z[token] -= sampling.dry_multiplier * sampling.dry_base**more


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
        by = sampling.repeat_penalty
        z[token] = z[token] / by if z[token] > 0 else z[token] * by
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


@contextmanager
def says(path, sampling, letters=()):
    """What a model says of the token after the prompt and these ones, by the options: [n_vocab]. letters: allowed, by place."""
    threads = {"n_threads": 1, "n_threads_batch": 1}
    llm = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False, **threads)

    def said(*emitted):
        llm.reset()
        llm.eval([*PROMPT, *emitted])
        row = np.array(llm.scores[llm.n_tokens - 1])
        allowed = letters[len(emitted)] if letters else None
        return distribution(row, sampling, list(emitted), allowed)

    with closing(llm):
        yield said


def possible(p):
    return np.flatnonzero(p > 0).tolist()


def texts(path, sampling, n, letters=()):
    """Probabilities of the n tokens after the prompt, by those tokens."""
    found = {(): 1.0}
    with says(path, sampling, letters) as said:
        for _ in range(n):
            rows = {text: said(*text) for text in found}
            ones = [(text, one) for text, p in rows.items() for one in possible(p)]
            found = {(*text, one): found[text] * rows[text][one] for text, one in ones}
    return found


def pairs(path, sampling, letters=()):
    return texts(path, sampling, 2, letters)


class Source:
    """Tokens after the prompt at many seeds, through the engine's own rounds. draft: a companion may go with it."""

    def __init__(self, path, draft, n_seq, sampling, grammar=None, length=2, policy=None):
        self._stack = ExitStack()
        names = map(str, draft if isinstance(draft, tuple) else (draft, "none"))
        models = Models(str(path), *names, n_threads=1, n_threads_batch=1, trust=True)
        self._stack.enter_context(closing(models))
        layout = Layout(padded(64 * n_seq))
        self.contexts = self._stack.enter_context(closing(Contexts(models, n_seq, 64, layout)))
        self.sampling, self.target, self.length = sampling, models.target, length
        self.grammar = Constraint(of_gbnf(grammar)) if grammar else None
        self.chains = [None] * n_seq
        self.policy = policy or FixedPolicy(length)
        self.drafted = self.verified = self.accepted = 0

    def close(self):
        for chain in self.chains:
            if chain is not None:
                chain.close()
        self._stack.close()

    def pairs(self, n):
        return self.texts(n, 2)

    def texts(self, n, tokens):
        """Counts of the tokens that came at seeds 0 to n - 1."""
        counts, n_seq = Counter(), len(self.chains)
        for seed in range(0, n, n_seq):
            runs = [self._run(seq, seed + seq) for seq in range(n_seq)]
            self._answer(runs, tokens)
            counts.update(tuple(run.tokens[len(PROMPT) :][:tokens]) for run in runs)
        return counts

    def _run(self, seq, seed):
        if self.chains[seq] is not None:
            self.chains[seq].close()
        sampling, most = replace(self.sampling, seed=seed), self.length + 1
        options = AnswerOptions(sampling, max_tokens=most, grammar=self.grammar)
        run, self.chains[seq] = options.begin(PROMPT, self.target)
        run.seq = seq
        self.contexts.engine.set_tokens(seq, PROMPT)
        run.tally.rounds = 1  # or its first round would not draft
        return run

    def _answer(self, runs, tokens):
        live, engine = runs, self.contexts.engine
        while live := [run for run in live if len(run.tokens) < len(PROMPT) + tokens]:
            for run in live:  # an end is a token like others
                run.finish_reason = None
            missing = {run.seq: len(run.tokens) - 1 - engine.held(0, run.seq) for run in live}
            if fills := [(seq, n, -1) for seq, n in missing.items() if n]:
                engine.verify(fills)
            self.contexts.loop.round(live, self.policy)
        for run in runs:
            self.drafted += run.tally.drafted
            self.verified += run.tally.verified
            self.accepted += run.tally.accepted


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
