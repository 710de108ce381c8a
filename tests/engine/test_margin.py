"""The margin rule in force on real rounds; the gate's arithmetic itself is tested in tests/native/test_gate.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import tiny
from helpers.answers import Scripted, ask, foretelling

from pyspec.draft.simple import FixedPolicy
from pyspec.llama.speculative import Speculation
from pyspec.sampling.chain import Sampling
from pyspec.sampling.verification import Margin, Strict

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
WIDE = Margin(theta=0.0, gap=math.inf)
SEEDS = range(6)


@pytest.fixture
def runner_up(open_plain, tiny_target):
    """A drafter that always proposes the target's second choice, one token a round, and the logits it went by."""
    plain = open_plain(tiny_target, logits_all=True)

    def write(tokens, limit):
        plain.reset()
        plain.eval(list(tokens))
        return [int(np.argsort(-plain.scores[plain.n_tokens - 1])[1])][:limit]

    return Scripted(write)


def test_closed_gate_gives_strict_text(open_llama, tiny_target, tiny_draft):
    """Theta 1 on the same code path is byte for byte the strict rule, greedy and sampled."""
    for sampling in [Sampling(temperature=0.0), *(Sampling(seed=seed) for seed in SEEDS)]:
        strict = ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling)
        llm = open_llama(tiny_target, draft=tiny_draft, verification=Margin(theta=1.0))
        closed = ask(llm, PROMPT, 60, sampling)
        assert (closed.ids, closed.flags) == (strict.ids, strict.flags)


def test_lookup_drafts_may_be_left_strict(open_llama, tiny_target, runner_up):
    """`lookup=False`: a runner-up that a drafter proposes is refused, however wide the gate."""
    rule = Margin(theta=0.0, gap=math.inf, lookup=False)
    strict = ask(open_llama(tiny_target), PROMPT, 30)
    llm = open_llama(tiny_target, draft=runner_up, verification=rule, length="fixed:1")
    answer = ask(llm, PROMPT, 30)
    assert (answer.ids, answer.flags) == (strict.ids, "t" * 30)


def test_runner_up_is_relaxed_and_its_gap_told(open_llama, open_plain, tiny_target, runner_up):
    """A relaxed token carries z1 - z2 of its row and what the target preferred."""
    answer = ask(
        open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1"), PROMPT, 30
    )
    assert answer.flags.count("r") > 5
    plain = open_plain(tiny_target, logits_all=True)
    plain.eval([*PROMPT, *answer.ids])
    for i, flag in enumerate(answer.flags):
        row = plain.scores[len(PROMPT) + i - 1]
        first, second = np.argsort(-row)[:2]
        assert answer.preferred[i] == first
        assert answer.ids[i] == (second if flag == "r" else first)
        assert answer.gaps[i] == pytest.approx(
            row[first] - row[second] if flag == "r" else 0.0, abs=1e-4
        )


def test_what_top_k_cut_away_is_never_relaxed(open_llama, tiny_target, runner_up):
    """Of one candidate there is no runner-up, however wide the gate."""
    llm = open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1")
    answer = ask(llm, PROMPT, 30, Sampling(top_k=1))
    assert "r" not in answer.flags
    assert answer.ids == ask(open_llama(tiny_target, draft="none"), PROMPT, 30).ids


class _LeftOut(FixedPolicy):
    """Drafts a token a round, verifies every other one, and keeps what is said of those left out."""

    def __init__(self):
        super().__init__(1)
        self.said, self._round = [], 0

    def choose(self, drafts):
        """See Policy."""
        self._round += 1
        return [draft.n * (self._round % 2) for draft in drafts]

    def observe(self, outcome):
        """See Policy."""
        self.said += [seq.next_match for seq in outcome.seqs if not seq.n_verified]


@pytest.mark.parametrize(("rule", "word"), [(Strict(), False), (WIDE, True)])
def test_a_token_left_out_is_judged_by_the_rule_in_force(
    open_llama, tiny_target, runner_up, rule, word
):
    """The target's second choice would be refused by the strict rule and taken by an open gate."""
    policy = _LeftOut()
    llm = open_llama(tiny_target, draft=runner_up, verification=rule)
    list(llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=20, policy=policy))
    said = [told for told in policy.said if told is not None]
    assert len(said) > 4
    assert set(said) == {word}


def test_statistics_count_relaxed_tokens(open_llama, tiny_target, runner_up):
    """Relaxed tokens and their nats are in the result's block."""
    llm = open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1")
    answer = ask(llm, PROMPT, 30)
    block = llm.last_speculation
    assert block["verification"] == "margin"
    assert block["relaxed"] == answer.flags.count("r") > 0
    assert block["relaxed_nats"] == pytest.approx(sum(answer.gaps), abs=1e-3)


def test_gap_bounds_each_relaxed_token(open_llama, tiny_target, runner_up):
    """No relaxed token is further than `gap` nats behind; the limit is not so low that nothing is relaxed."""
    answer = ask(
        open_llama(
            tiny_target, draft=runner_up, verification=Margin(theta=0.0, gap=1.0), length="fixed:1"
        ),
        PROMPT,
        60,
    )
    assert 0.0 < max(answer.gaps) <= 1.0


def test_theta_bounds_the_ratio(open_llama, open_plain, tiny_target, runner_up):
    """Of two answers with gap infinite, only the ratio decides: the paper's rule."""
    answer = ask(
        open_llama(
            tiny_target,
            draft=runner_up,
            verification=Margin(theta=0.8, gap=math.inf),
            length="fixed:1",
        ),
        PROMPT,
        60,
    )
    plain = open_plain(tiny_target, logits_all=True)
    plain.eval([*PROMPT, *answer.ids])
    ratios = []
    for i, flag in enumerate(answer.flags):
        z2, z1 = np.sort(plain.scores[len(PROMPT) + i - 1])[-2:]
        if flag == "r":
            ratios.append(z2 / z1)
    assert ratios
    assert min(ratios) > 0.8


@pytest.mark.parametrize("budget", [0.0, 0.3, 2.0])
def test_budget_bounds_the_answer(open_llama, tiny_target, runner_up, budget):
    """The sum of gaps of an answer stays within its budget, and a new answer begins with a whole one."""
    rule = Margin(theta=0.0, gap=math.inf, budget=budget)
    llm = open_llama(tiny_target, draft=runner_up, verification=rule, length="fixed:1")
    for _ in range(2):
        answer = ask(llm, PROMPT, 60)
        assert sum(answer.gaps) <= budget
        assert ("r" in answer.flags) is (budget > 0.0)


def chain_of_runners_up(llm, n):
    """A text whose tokens after the first are each the target's second choice where logits are positive."""
    text = [*PROMPT, *ask(llm, PROMPT, 1).ids]
    while len(text) < n:
        list(llm.steps(text, Sampling(temperature=0.0), max_tokens=1, keep_rows=True))
        text.append(int(np.argsort(-llm._rows[len(text) - 1])[1]))
    return text


def test_end_is_never_relaxed(open_llama, tiny_folder, tiny_target):
    """Neither is a drafted end token taken for the target's other choice, nor another token for the target's end."""
    plain = ask(open_llama(tiny_target), PROMPT, 30)
    seconds = chain_of_runners_up(open_llama(tiny_target), 30)
    at = next(i for i in range(5, 27) if seconds[i] not in seconds[:i])
    ends = tiny.write(tiny_folder / "runner-up-ends.gguf", eos=seconds[at])
    relaxed = ask(
        open_llama(tiny_target, draft=foretelling(seconds), verification=WIDE, length="fixed:8"),
        PROMPT,
        26,
    )
    assert relaxed.ids[at - 3] == seconds[at]
    assert relaxed.flags[at - 3] == "r"
    answer = ask(
        open_llama(ends, draft=foretelling(seconds), verification=WIDE, length="fixed:8"),
        PROMPT,
        26,
    )
    assert answer.ids[: at - 3] == relaxed.ids[: at - 3]
    assert answer.ids[at - 3] != seconds[at]
    assert answer.flags[at - 3] == "t"
    at = next(i for i in range(5, 27) if plain.ids[i] not in plain.ids[:i])
    ends = tiny.write(tiny_folder / "first-ends.gguf", eos=plain.ids[at])
    text = [*PROMPT, *plain.ids[:at]]
    llm = open_llama(tiny_target)
    list(llm.steps(text, Sampling(temperature=0.0), max_tokens=1, keep_rows=True))
    other = int(np.argsort(-llm._rows[len(text) - 1])[1])
    answer = ask(
        open_llama(ends, draft=foretelling([*text, other]), verification=WIDE, length="fixed:8"),
        PROMPT,
        30,
    )
    assert (answer.ids, answer.finish_reason) == (plain.ids[: at + 1], "stop")


@pytest.mark.parametrize(
    "shape",
    [
        {"repeat_penalty": 1.2},
        {"presence_penalty": 0.1},
        {"logit_bias": {5: 0.1}},
        {"mirostat_mode": 2},
    ],
)
def test_shaped_rows_are_never_relaxed(open_llama, tiny_target, runner_up, shape):
    """Where penalties, bias or mirostat change the row, the rule is strict and the result says so."""
    llm = open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1")
    answer = ask(llm, PROMPT, 30, Sampling(temperature=0.8, seed=1, **shape))
    assert "r" not in answer.flags
    assert llm.last_speculation["verification"] == "strict"


def test_above_temperature_0_the_first_may_be_taken_for_what_was_drawn(open_llama, tiny_target):
    """By llama.cpp's own draws, either of the top two is taken where the gate is open: the draft's argmax among them."""
    llm = open_llama(tiny_target, draft=tiny_target, verification=WIDE)
    loose = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "noise": "llama.cpp"}
    answer = ask(llm, PROMPT, 60, Sampling(temperature=1.5, seed=3, **loose))
    taken = [
        (gap, id_ != own)
        for gap, id_, own, flag in zip(answer.gaps, answer.ids, answer.preferred, answer.flags)
        if flag == "r"
    ]
    assert taken
    assert all(differs and gap == 0.0 for gap, differs in taken)


def test_rule_can_be_changed_for_one_call(open_llama, tiny_target, runner_up):
    """A call's own verification holds for that call."""
    llm = open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1")
    assert "r" not in ask(llm, PROMPT, 30, speculation=Speculation(verification=Strict())).flags
    assert "r" in ask(llm, PROMPT, 30).flags


def test_above_temperature_0_gaps_are_those_of_that_temperature(
    open_llama, open_plain, tiny_target, runner_up
):
    """A relaxed runner-up costs (z1 - z2) / T, whatever was drawn, and never more than the gap allowed."""
    loose = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "noise": "llama.cpp"}
    sampling = Sampling(temperature=2.0, seed=3, **loose)
    rule = Margin(theta=0.0, gap=0.6)
    llm = open_llama(tiny_target, draft=runner_up, verification=rule, length="fixed:1")
    answer = ask(llm, PROMPT, 60, sampling)
    plain = open_plain(tiny_target, logits_all=True)
    plain.eval([*PROMPT, *answer.ids])
    relaxed = [i for i, flag in enumerate(answer.flags) if flag == "r"]
    for i in relaxed:
        z2, z1 = np.sort(plain.scores[len(PROMPT) + i - 1])[-2:]
        assert answer.gaps[i] == pytest.approx((z1 - z2) / 2.0, abs=1e-4)
    assert 0.3 < max(answer.gaps) <= 0.6


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}, {"typical_p": 1e-6}]
)
def test_what_truncation_removed_is_not_taken(open_llama, tiny_target, runner_up, cut):
    """Where the sampler leaves one token to draw, there is no runner-up to take."""
    options = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | cut
    llm = open_llama(tiny_target, draft=runner_up, verification=WIDE, length="fixed:1")
    answer = ask(llm, PROMPT, 60, Sampling(temperature=1.5, seed=3, **options))
    assert llm.last_speculation["drafted"] > 30
    assert "r" not in answer.flags


@pytest.mark.parametrize("draft", ["same", "second"])
def test_budget_0_is_strict_above_temperature_0(open_llama, tiny_target, runner_up, draft):
    """Also where taking the first would cost nothing: the text is the strict rule's, byte for byte."""
    sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    drafter = tiny_target if draft == "same" else runner_up
    found = [
        ask(open_llama(tiny_target, draft=drafter, verification=rule), PROMPT, 60, sampling)
        for rule in (Strict(), Margin(theta=0.0, gap=math.inf, budget=0.0))
    ]
    assert (found[0].ids, found[0].flags) == (found[1].ids, found[1].flags)


def test_a_small_budget_relaxes_no_token_for_free(open_llama, tiny_target):
    """By llama.cpp's own draws: taking the likeliest token for the one that was drawn sharpens the answer, and costs that."""
    loose = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "noise": "llama.cpp"}
    sampling = Sampling(temperature=1.5, seed=3, **loose)
    flags = {}
    for budget in (1e-6, 100.0):
        rule = Margin(theta=0.0, gap=math.inf, budget=budget)
        llm = open_llama(tiny_target, draft=tiny_target, verification=rule)
        flags[budget] = ask(llm, PROMPT, 60, sampling).flags
    assert "r" not in flags[1e-6]
    assert "r" in flags[100.0]


# -- confirmed by more than the row --------------------------------------------------------------------------------------


@pytest.fixture
def rejoining(open_plain, tiny_target):
    """A drafter that proposes the target's second choice and then, for 4 tokens, what the target goes on with."""
    plain = open_plain(tiny_target, logits_all=True)

    def write(tokens, limit):
        text = list(tokens)
        for i in range(min(5, limit)):
            plain.reset()
            plain.eval(text)
            text.append(int(np.argsort(-plain.scores[plain.n_tokens - 1])[1 if i == 0 else 0]))
        return text[len(tokens) :]

    return Scripted(write)


@pytest.mark.parametrize(("confirm", "length", "relaxed"), [
    (0, 5, True), (1, 5, True), (4, 5, True), (5, 5, False), (4, 4, False), (1, 1, False), (3, 4, True),
])  # fmt: skip
def test_confirmed_by_what_follows(open_llama, tiny_target, rejoining, confirm, length, relaxed):
    """So many of the tokens behind it are the target's own; with too few verified behind it nothing is relaxed."""
    rule = Margin(theta=0.0, gap=math.inf, confirm=confirm)
    llm = open_llama(tiny_target, draft=rejoining, verification=rule, length=f"fixed:{length}")
    tokens = [
        t
        for step in llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=40)
        for t in step.tokens
    ]
    taken = [i for i, token in enumerate(tokens) if token.source.label == "relaxed"]
    assert bool(taken) is relaxed
    for i in taken if confirm else []:
        assert tokens[i].confirmed == confirm
        assert all(token.source.label == "accepted" for token in tokens[i + 1 : i + 1 + confirm])


def test_a_deviation_that_does_not_rejoin_is_refused(open_llama, tiny_target, runner_up):
    """Second choices one after the other confirm none of them."""
    rule = Margin(theta=0.0, gap=math.inf, confirm=1)
    llm = open_llama(tiny_target, draft=runner_up, verification=rule, length="fixed:1")
    assert "r" not in ask(llm, PROMPT, 40).flags


def test_gap_0_stays_exact_whatever_confirms(open_llama, tiny_target, tiny_draft):
    strict = ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60)
    rule = Margin(gap=0.0, confirm=1)
    found = ask(open_llama(tiny_target, draft=tiny_draft, verification=rule), PROMPT, 60)
    assert found.ids == strict.ids
