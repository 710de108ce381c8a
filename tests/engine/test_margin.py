"""The margin rule in force on real rounds; the gate's arithmetic itself is tested in tests/native/test_gate.py."""

import math

import numpy as np
import pytest
from helpers import tiny
from helpers.answers import GREEDY, Scripted, ask, foretelling

from pyspec.draft.simple import FixedPolicy
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Margin, Strict

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]
WIDE = Margin(theta=0.0, gap=math.inf)
SEEDS = range(6)
LOOSE = {"seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "noise": "llama.cpp"}


@pytest.fixture
def runner_up(open_plain, tiny_target):
    """A drafter that always proposes the target's second choice, one token a round, and the logits it went by."""
    plain = open_plain(tiny_target, logits_all=True)

    def write(tokens, limit):
        plain.reset()
        plain.eval(list(tokens))
        return [int(np.argsort(-plain.scores[plain.n_tokens - 1])[1])][:limit]

    return Scripted(write)


@pytest.fixture
def seconds(open_llama, tiny_target, runner_up):
    """Answers under a rule where one token a round is proposed, the second choice; returns the model, too."""

    def answer(rule=WIDE, n=30, sampling=GREEDY):
        llm = open_llama(tiny_target, draft=runner_up, verification=rule, length="fixed:1")
        return llm, ask(llm, PROMPT, n, sampling)

    return answer


@pytest.fixture
def rows_of(open_plain, tiny_target):
    """Each token of an answer with its flag and the row that it was chosen by, of the whole text's logits."""

    def rows(answer):
        plain = open_plain(tiny_target, logits_all=True)
        plain.eval([*PROMPT, *answer.ids])
        return list(zip(range(len(answer.ids)), answer.flags, plain.scores[len(PROMPT) - 1 :]))

    return rows


@pytest.mark.parametrize("rule", [Margin(theta=1.0), Margin(gap=0.0, confirm=1)])
def test_closed_gate_gives_strict_text(open_llama, tiny_target, tiny_draft, rule):
    for sampling in [GREEDY, *(Sampling(seed=seed) for seed in SEEDS if rule.theta == 1.0)]:
        strict = ask(open_llama(tiny_target, draft=tiny_draft), PROMPT, 60, sampling)
        llm = open_llama(tiny_target, draft=tiny_draft, verification=rule)
        closed = ask(llm, PROMPT, 60, sampling)
        assert (closed.ids, closed.flags) == (strict.ids, strict.flags)


@pytest.mark.parametrize(("rule", "sampling"), [
    (Margin(theta=0.0, gap=math.inf, lookup=False), GREEDY), # lookup's drafts are left strict
    (Margin(theta=0.0, gap=math.inf, confirm=1), GREEDY), # a deviation does not rejoin
    (WIDE, Sampling(top_k=1)), # top_k cut it away
])  # fmt: skip
def test_what_the_rule_forbids_is_never_relaxed(open_llama, tiny_target, seconds, rule, sampling):
    _, answer = seconds(rule, sampling=sampling)
    strict = ask(open_llama(tiny_target), PROMPT, 30)
    assert (answer.ids, answer.flags) == (strict.ids, "t" * 30)


def test_runner_up_is_relaxed_and_its_gap_told(seconds, rows_of):
    llm, answer = seconds()
    assert answer.flags.count("r") > 5
    for i, flag, row in rows_of(answer):
        first, second = np.argsort(-row)[:2]
        lost = row[first] - row[second] if flag == "r" else 0.0
        assert (answer.ids[i], answer.preferred[i]) == (second if flag == "r" else first, first)
        assert answer.gaps[i] == pytest.approx(lost, abs=1e-4)
    block = llm.last_speculation
    assert (block["verification"], block["relaxed"]) == ("margin", answer.flags.count("r"))
    assert block["relaxed_nats"] == pytest.approx(sum(answer.gaps), abs=1e-3)


class _LeftOut(FixedPolicy):
    """Drafts a token a round, verifies every other one, and keeps what is said of those left out."""

    def __init__(self):
        super().__init__(1)
        self.said, self._round = [], 0

    def choose(self, drafts):
        self._round += 1
        return [draft.n * (self._round % 2) for draft in drafts]

    def watch(self, seen, seqs=()):
        self.said += [seq.next_match for seq in seqs]


@pytest.mark.parametrize(("rule", "word"), [(Strict(), False), (WIDE, True)])
def test_a_token_left_out_is_judged_by_the_rule_in_force(
    open_llama, tiny_target, runner_up, rule, word
):
    policy = _LeftOut()
    llm = open_llama(tiny_target, draft=runner_up, verification=rule)
    list(llm.steps(PROMPT, GREEDY, max_tokens=20, policy=policy))
    said = [told for told in policy.said if told is not None]
    assert len(said) > 4
    assert set(said) == {word}


@pytest.mark.parametrize("budget", [0.0, 0.3, 2.0])
def test_budget_bounds_the_answer(seconds, budget):
    llm, answer = seconds(Margin(theta=0.0, gap=math.inf, budget=budget), 60)
    for each in (answer, ask(llm, PROMPT, 60)):
        assert sum(each.gaps) <= budget
        assert ("r" in each.flags) is (budget > 0.0)


def chain_of_runners_up(llm, n):
    """A text whose tokens after the first are each the target's second choice where logits are positive."""
    text = [*PROMPT, *ask(llm, PROMPT, 1).ids]
    while len(text) < n:
        list(llm.steps(text, GREEDY, max_tokens=1, keep_rows=True))
        text.append(int(np.argsort(-llm._rows[len(text) - 1])[1]))
    return text


def test_end_is_never_relaxed(open_llama, tiny_folder, tiny_target):
    def relaxed(path, text, n):
        llm = open_llama(path, draft=foretelling(text), verification=WIDE, length="fixed:8")
        return ask(llm, PROMPT, n)

    plain = ask(open_llama(tiny_target), PROMPT, 30)
    others = chain_of_runners_up(open_llama(tiny_target), 30)
    at = next(i for i in range(5, 27) if others[i] not in others[:i])
    ends = tiny.write(tiny_folder / "runner-up-ends.gguf", eos=others[at])
    free, answer = relaxed(tiny_target, others, 26), relaxed(ends, others, 26)
    assert (free.ids[at - 3], free.flags[at - 3]) == (others[at], "r")
    assert answer.ids[: at - 3] == free.ids[: at - 3]
    assert answer.ids[at - 3] != others[at]
    assert answer.flags[at - 3] == "t"
    at = next(i for i in range(5, 27) if plain.ids[i] not in plain.ids[:i])
    ends = tiny.write(tiny_folder / "first-ends.gguf", eos=plain.ids[at])
    text = [*PROMPT, *plain.ids[:at]]
    llm = open_llama(tiny_target)
    list(llm.steps(text, GREEDY, max_tokens=1, keep_rows=True))
    answer = relaxed(ends, [*text, int(np.argsort(-llm._rows[len(text) - 1])[1])], 30)
    assert (answer.ids, answer.finish_reason) == (plain.ids[: at + 1], "stop")


WHOLE = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(("options", "rule"), [
    ({"repeat_penalty": 1.2}, "strict"), ({"presence_penalty": 0.1}, "strict"),
    ({"logit_bias": {5: 0.1}}, "strict"), ({"mirostat_mode": 2}, "strict"),
    # what truncation removed is not taken
    ({**WHOLE, "top_k": 1}, "margin"), ({**WHOLE, "min_p": 1.0}, "margin"), ({**WHOLE, "top_p": 1e-6}, "margin"),
    ({**WHOLE, "typical_p": 1e-6}, "margin"),
])  # fmt: skip
def test_shaped_and_cut_rows_are_never_relaxed(seconds, options, rule):
    llm, answer = seconds(n=60, sampling=Sampling(seed=3, **options))
    assert llm.last_speculation["drafted"] > 30
    assert "r" not in answer.flags
    assert llm.last_speculation["verification"] == rule


def test_above_temperature_0_the_first_may_be_taken_for_what_was_drawn(open_llama, tiny_target):
    """By llama.cpp's own draws, either of the top two is taken where the gate is open: the draft's argmax among them."""
    llm = open_llama(tiny_target, draft=tiny_target, verification=WIDE)
    answer = ask(llm, PROMPT, 60, Sampling(temperature=1.5, **LOOSE))
    told = zip(answer.flags, answer.gaps, answer.ids, answer.preferred)
    taken = {(gap, token != own) for flag, gap, token, own in told if flag == "r"}
    assert taken == {(0.0, True)}


def test_above_temperature_0_gaps_are_those_of_that_temperature(seconds, rows_of):
    _, answer = seconds(Margin(theta=0.0, gap=0.6), 60, Sampling(temperature=2.0, **LOOSE))
    for i, flag, row in rows_of(answer):
        z2, z1 = np.sort(row)[-2:]
        assert flag != "r" or answer.gaps[i] == pytest.approx((z1 - z2) / 2.0, abs=1e-4)
    assert 0.3 < max(answer.gaps) <= 0.6


def test_a_small_budget_relaxes_no_token_for_free(open_llama, tiny_target):
    """By llama.cpp's own draws: taking the likeliest token for the one that was drawn sharpens the answer, and costs that."""
    sampling, flags = Sampling(temperature=1.5, **LOOSE), {}
    for budget in (1e-6, 100.0):
        rule = Margin(theta=0.0, gap=math.inf, budget=budget)
        llm = open_llama(tiny_target, draft=tiny_target, verification=rule)
        flags[budget] = ask(llm, PROMPT, 60, sampling).flags
    assert "r" not in flags[1e-6]
    assert "r" in flags[100.0]


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
    rule = Margin(theta=0.0, gap=math.inf, confirm=confirm)
    llm = open_llama(tiny_target, draft=rejoining, verification=rule, length=f"fixed:{length}")
    tokens = [token for step in ask(llm, PROMPT).steps for token in step.tokens]
    taken = [i for i, token in enumerate(tokens) if token.source.label == "relaxed"]
    assert bool(taken) is relaxed
    for i in taken if confirm else []:
        assert tokens[i].confirmed == confirm
        assert all(token.source.label == "accepted" for token in tokens[i + 1 : i + 1 + confirm])
