"""The round: flags, counts of decoded rows, and where an answer ends."""

from contextlib import closing

import pytest
from helpers import tiny
from helpers.answers import CELLS, GREEDY, Diary, Scripted, ask, ask_at_once, counters, foretelling

from pyspec import Speculation
from pyspec.draft.types import Plan
from pyspec.engine import round as round_
from pyspec.engine.contexts import Contexts, Models
from pyspec.engine.handle import Gate
from pyspec.engine.round import Run
from pyspec.sampling.verification import Strict

PROMPT = [tiny.A, tiny.A + 1, tiny.A + 2]


def test_draft_equal_to_target_is_accepted_whole(open_llama, tiny_target, reference):
    """The draft decodes prompt and answer once: all but the last round's last drafted token and the target's own."""
    llm = open_llama(tiny_target, draft=tiny_target)
    answer = ask(llm, PROMPT)
    assert answer.ids == reference
    assert answer.flags == "t" + 7 * "aaaat" + "aaat"
    assert counters(llm.assembly.engine).rows[1] == len(PROMPT) + len(answer.ids) - 2


def test_first_token_does_not_wait_for_the_draft(open_llama, tiny_target):
    llm = open_llama(tiny_target, draft=tiny_target)
    steps = llm.steps(PROMPT, max_tokens=10)
    next(steps)
    assert counters(llm.assembly.engine).rows[1] == 0
    steps.close()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 16, 63])
def test_greedy_text_is_plain_greedy_at_every_length(
    open_llama, tiny_target, tiny_draft, reference, k
):
    llm = open_llama(tiny_target, draft=tiny_draft, length=f"fixed:{k}")
    answer = ask(llm, PROMPT)
    assert answer.ids == reference
    assert 0 < answer.flags.count("a") < llm.last_speculation["drafted"]
    block = llm.last_speculation  # the target decodes each row once
    rows = counters(llm.assembly.engine).rows[0]
    assert rows == len(PROMPT) - 1 + block["rounds"] + block["verified"]


def test_draft_decodes_again_only_what_was_refused(open_llama, tiny_target, tiny_draft):
    """The draft's KV is kept: its rows are the text's and those of drafted tokens that were not taken."""
    llm = open_llama(tiny_target, draft=tiny_draft)
    answer = ask(llm, PROMPT, 41)
    wasted, remaining = 0, 40
    for step in answer.steps[1:]:
        drafted = min(4, remaining - 1)
        taken = sum(token.source.label == "accepted" for token in step.tokens)
        wasted += max(0, drafted - 1 - taken)  # the draft never decodes the last drafted token
        remaining -= len(step.tokens)
    held = llm.assembly.engine.held(1, 0)
    assert wasted > 0
    assert counters(llm.assembly.engine).rows[1] == held + wasted


def test_companion_reads_text_once(open_llama, tiny_target, tiny_companion):
    llm = open_llama(tiny_target, draft=tiny_target, companion=tiny_companion, length="companion")
    ask(llm, PROMPT, 60)
    engine = llm.assembly.engine
    told = llm.last_speculation
    most = engine.held(2, 0) + told["drafted"] - told["verified"] + told["rounds"]
    assert counters(engine).rows[2] <= most


class Cautious(Diary):
    """Drafts five tokens, with a companion if there is one, and verifies one."""

    def __init__(self):
        super().__init__(5)

    def plan(self, places):
        return Plan(super().plan(places).lengths, use_companion=True)

    def choose(self, drafts):
        return [min(1, draft.n) for draft in drafts]


def cautiously(llm):
    policy = Cautious()
    list(llm.steps(PROMPT, GREEDY, max_tokens=40, policy=policy))
    return policy


def test_kept_drafts_are_not_counted_as_decodes(open_llama, tiny_target):
    """Of five right tokens two are emitted: three go on into the next draft, which takes two decodes of one row each."""
    llm = open_llama(tiny_target, draft=tiny_target)
    heard = cautiously(llm).outcomes
    assert [outcome.draft_steps for outcome in heard[:4]] == [5, 2, 2, 2]
    assert sum(outcome.draft_steps for outcome in heard) == counters(llm.assembly.engine).decodes[1]
    rows = sum(outcome.draft_steps + outcome.caught_up for outcome in heard)
    assert rows == counters(llm.assembly.engine).rows[1]
    assert all(outcome.caught_up == 0 for outcome in heard[1:])


def test_the_companions_reading_is_told_apart_from_its_judging(
    open_llama, tiny_target, tiny_companion
):
    llm = open_llama(tiny_target, draft=tiny_target, companion=tiny_companion)
    policy = cautiously(llm)
    heard = [outcome for outcome in policy.outcomes if outcome.companion_rows]
    assert heard[0].companion_read == policy.places[0].companion_lag == len(PROMPT)
    assert sum(outcome.companion_rows for outcome in heard) == counters(llm.assembly.engine).rows[2]
    assert [outcome.companion_rows - outcome.companion_read for outcome in heard[:3]] == [5, 5, 5]


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_length_ends_exactly(open_llama, tiny_target, reference, n):
    llm = open_llama(tiny_target, draft=tiny_target, length="fixed:63")
    answer = ask(llm, PROMPT, n)
    assert (answer.ids, answer.finish_reason) == (reference[:n], "length")
    assert (counters(llm.assembly.engine).rows[1] > 0) is (n > 2)  # fewer need no draft


def ending(tiny_folder, reference, at):
    """The tiny target once more, with another end token: the one that first comes at place `at` or later."""
    at = next(i for i in range(at, 40) if reference[i] not in reference[:i])
    return tiny.write(tiny_folder / f"ends-{at}.gguf", eos=reference[at]), at


@pytest.mark.parametrize("at", [1, 4, 7, 9])
def test_end_inside_an_accepted_draft_ends_the_answer(open_llama, tiny_folder, reference, at):
    path, at = ending(tiny_folder, reference, at)
    llm = open_llama(path, draft=foretelling([*PROMPT, *reference]), length="fixed:8")
    answer = ask(llm, PROMPT)
    assert (answer.ids, answer.finish_reason) == (reference[: at + 1], "stop")
    assert llm.n_tokens == llm.session.held == len(PROMPT) + at


def test_draft_model_does_not_draft_past_an_end(open_llama, tiny_folder, reference):
    path, at = ending(tiny_folder, reference, 7)
    llm = open_llama(path, draft=path, length="fixed:63")
    answer = ask(llm, PROMPT)
    assert answer.flags == "t" + "a" * at
    assert llm.last_speculation["drafted"] == at


def test_prompt_that_fills_the_context_gives_one_token(open_llama, tiny_target):
    llm = open_llama(tiny_target, draft=tiny_target)
    answer = ask(llm, (PROMPT * 100)[: llm.n_ctx()])
    assert (len(answer.ids), answer.finish_reason) == (1, "context")


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_the_policy_is_told_where_there_is_no_model(open_llama, tiny_target, draft):
    """It would weigh a lookup's drafts against those of a model that is not there."""
    llm = open_llama(tiny_target, draft="lookup" if draft == "lookup" else tiny_target)
    policy = Diary(4)
    list(llm.steps(PROMPT, GREEDY, max_tokens=12, policy=policy))
    longest = {place.longest for place in policy.places if place.room}
    assert (longest == {0}) is (draft == "lookup")


@pytest.mark.parametrize("without", ["a draft", "leave"])
def test_where_nothing_can_be_drafted_the_policy_is_not_asked(
    open_llama, tiny_target, reference, without
):
    llm = open_llama(tiny_target, draft="none" if without == "a draft" else tiny_target)
    policy, asked = Diary(4), Speculation(enabled=False) if without == "leave" else None
    steps = llm.steps(PROMPT, GREEDY, max_tokens=40, speculation=asked, policy=policy)
    assert [token.id for step in steps for token in step.tokens] == reference
    assert (policy.places, len(policy.rounds)) == ([], 40)
    assert all(
        n_seq == 1 and 0.0 < t_verify < t_round and depth >= len(PROMPT)
        for (n_seq, t_verify, t_round, depth), _ in policy.rounds
    )


def test_what_drafts_take_before_a_decode_is_no_time_of_a_plain_round(
    open_llama, tiny_target, monkeypatch
):
    """By a clock that goes only while something is proposed: plain decoding would not ask."""
    policy, asked = Diary(4), []
    monkeypatch.setattr(round_, "perf_counter", lambda: float(len(asked)))
    llm = open_llama(tiny_target, draft=Scripted(lambda *_: asked.append(1) or ()))
    list(llm.steps(PROMPT, GREEDY, max_tokens=10, policy=policy))
    assert asked
    assert {seen.t_round for seen, _ in policy.rounds} == {0.0}


# -- at the edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ctx", [32, 33, 34, 35])
def test_no_draft_is_verified_beyond_the_last_position(tiny_target, n_ctx):
    models = Models(str(tiny_target), str(tiny_target), "none", n_threads=1, n_threads_batch=1)
    run = ask_at_once(models, [PROMPT], [10_000], n_ctx=n_ctx)[0]
    assert run.finish_reason == "context"
    assert len(run.tokens) == n_ctx + 1
    assert run.tally.accepted > 0


def test_prompt_rows_beside_an_answer_count_as_rows_of_the_verify(tiny_target):
    models = Models(str(tiny_target), str(tiny_target), "none", n_threads=1, n_threads_batch=1)
    with closing(models), closing(Contexts(models, 4, 128, CELLS)) as contexts:
        answering, reading = (
            Run(seq, list(PROMPT) * n, Gate(Strict(), False), 20) for seq, n in ((0, 1), (1, 3))
        )
        for run in (answering, reading):
            contexts.loop.begin(run)
        answering.tally.rounds = 1  # its first round would not draft
        policy = Cautious()
        contexts.loop.round([answering], policy, reading=[(reading, 5)])
    assert [outcome.verify_rows for outcome in policy.outcomes] == [len(PROMPT) + 1 + 5]


def test_a_draft_left_out_beside_prompt_rows_teaches_what_became_of_it(tiny_target):
    models = Models(str(tiny_target), "lookup", "none", n_threads=1, n_threads_batch=1)
    with closing(models), closing(Contexts(models, 4, 128, CELLS)) as contexts:
        runs = [Run(seq, list(PROMPT) * 3, Gate(Strict(), False), 20) for seq in (0, 1)]
        for run in runs:
            contexts.loop.begin(run)
        runs[0].tally.rounds = 1  # its first round would not draft
        policy = Diary(4)
        policy.choose = lambda drafts: [0] * len(drafts)
        contexts.loop.round(runs[:1], policy, reading=[(runs[1], 5)])
    assert policy.rounds == []
    assert [outcome.seqs[0].next_match for outcome in policy.outcomes] == [False]
