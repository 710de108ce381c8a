"""Continuous batching: order, shared prefixes, cells, faults, and that nobody's text depends on them."""

import pytest
from helpers.answers import Scripted, ask, counters
from helpers.fake_batch import texts
from helpers.tiny import F32

from pyspec.batch import Settings
from pyspec.batch.output import output_line
from pyspec.draft.goodput import GoodputPolicy
from pyspec.engine.answer import Answer
from pyspec.engine.handle import Engine
from pyspec.engine.kept import MIN_TOKENS
from pyspec.errors import Cancelled, EngineError, NumericError
from pyspec.requests.records import Record
from pyspec.sampling.options import Sampling
from pyspec.sampling.verification import Margin
from pyspec.text.parts import RecordResult

WORDS = [
    "a", "hello", "once upon a time", "x" * 90, "the end.", "bb", "zyxwvut", "q" * 33, "to be or not to be",
]  # fmt: skip


def alone(llm, prompts):
    """24 tokens after each prompt, one sequence, plain decoding."""
    ids = [ask(llm, llm.tokenize(each.encode(), add_bos=False), 24).ids for each in prompts]
    return ["".join(llm.piece(token).decode() for token in each) for each in ids]


@pytest.fixture
def reference(open_llama, tiny_target):
    return alone(open_llama(tiny_target), WORDS)


@pytest.mark.parametrize("parallel", [1, 2, 5, 16])
@pytest.mark.parametrize("drafting", ["none", "lookup", "model", "both"])
def test_text_does_not_depend_on_the_batch(open_batch, reference, tiny_draft, parallel, drafting):
    """Nor on the order, nor on what was asked before and left."""
    draft = {"model": str(tiny_draft), "both": f"lookup+{tiny_draft}"}.get(drafting, drafting)
    batch = open_batch(draft=draft, parallel=parallel)
    assert texts(batch, WORDS) == reference
    next(iter(batch.run(WORDS)))
    assert texts(batch, WORDS[::-1]) == reference[::-1]
    batch.close()
    batch.close()


def test_companion_changes_no_text(open_batch, reference, tiny_draft, tiny_companion):
    """Scores of all sequences in one batch, lengths chosen over all of them."""
    batch = open_batch(draft=tiny_draft, companion=tiny_companion, length="companion", parallel=4)
    assert texts(batch, WORDS) == reference
    assert batch.stats()["decode_s"]["companion"] > 0


def test_margin_gates_each_answer_by_itself(open_batch, tiny_draft):
    rule = Margin(theta=0.0, gap=5.0, budget=4.0)
    settings = Settings(rule=rule, max_tokens=24, raw=True)
    results = list(open_batch(draft=tiny_draft, parallel=4, settings=settings).run(WORDS))
    nats = [result.speculation["relaxed_nats"] for result in results]
    assert sum(result.speculation["relaxed"] for result in results) > 0
    assert all(0 <= spent <= 4.0 for spent in nats)


def test_seeds_belong_to_records(open_batch):
    """Whatever else shapes them: what a sampler remembers is of one answer."""
    shape = {"dry_multiplier": 1.0, "dry_penalty_last_n": -1, "xtc_probability": 0.5, "xtc_threshold": 0.05}  # fmt: skip
    warm = Sampling(temperature=1.5, seed=3, dynatemp_range=0.5, **shape)
    sampled = {"settings": Settings(warm, max_tokens=24, raw=True)}
    records = [Record(id=word, prompt=word) for word in WORDS]
    one = texts(open_batch(parallel=1, **sampled, **F32), records)
    assert texts(open_batch(parallel=8, **sampled, **F32), records[::-1]) == one[::-1]
    other = {"settings": Settings(Sampling(temperature=1.5, seed=4), max_tokens=24, raw=True)}
    assert texts(open_batch(parallel=1, **other), records) != one


# -- prefixes and cells ------------------------------------------------------------------------------


def test_prefixes_and_few_cells_change_no_text(
    open_batch, open_llama, tiny_target, tiny_draft, reference
):
    prompts = ["once upon a time there was " + word for word in WORDS[:4]]
    batch = open_batch(parallel=3, draft=tiny_draft)
    assert texts(batch, prompts) == alone(open_llama(tiny_target), prompts)
    assert batch.stats()["prefix_tokens"] >= 26
    assert texts(open_batch(parallel=8, n_ctx=128, cells=256), WORDS) == reference


def test_prefix_gives_way_where_cells_are_short(open_batch, submit):
    prefix = "the quick brown fox jumps "
    prompts = [prefix + "a", prefix + "b", "z" * 200]
    batch = open_batch(parallel=2, n_ctx=256, cells=256, max_tokens=56)
    submit(batch, prompts[:2])
    found = []
    for result in batch.stream():
        found.append(result)
        if len(found) == 1:
            submit(batch, prompts[2:])
    assert [r.error for r in found] == [None] * 3
    assert found[-1].usage.total_tokens == 256


def test_longest_record_starts_first(open_batch):
    """Within the window, so that the end of a batch is not one long answer alone."""
    order = []
    drafter = Scripted(lambda tokens, _limit: order.append(len(tokens)) or [])
    list(open_batch(draft=drafter, parallel=1, max_tokens=3).run(["abc", "x" * 90, "hello"]))
    assert order == [91, 6, 4]


def test_long_prompt_does_not_stall_others(open_batch, submit, work):
    batch = open_batch(parallel=2, max_tokens=12, n_ubatch=16)
    submit(batch, [Record(id="a", prompt="ab", max_tokens=3), "cd"])
    for i, _ in enumerate(batch.stream()):
        if i == 0:
            submit(batch, ["y" * 100])
    mixed = [each for each in work if {n < 0 for _, _, n in each} == {True, False}]
    assert len(mixed) >= 3


def test_rejected_drafts_take_nothing_of_a_window(open_batch, tiny_sliding):
    """In passes of 8 rows, drafts of the first may move the window by more than is verified in the end."""
    asked = [(word * 90)[:n] for word, n in (("abc", 60), ("de", 41), ("fgh", 83), ("i j", 30))] * 3
    options = {"parallel": 4, "max_tokens": 100, "n_ubatch": 8, "length": "fixed:16", **F32}
    wrong = Scripted(lambda text, limit: [3 + (7 * i + text[-1]) % 29 for i in range(limit)])
    plain = texts(open_batch(tiny_sliding, **options), asked)
    assert texts(open_batch(tiny_sliding, draft=wrong, **options), asked) == plain


def test_policy_hears_of_every_new_text(open_batch, monkeypatch):
    """What it remembers of a sequence is of one text; before its first round there is nothing to forget."""
    begun = []
    monkeypatch.setattr(GoodputPolicy, "begin_sequence", lambda _, seq: begun.append(seq))
    list(open_batch(draft="lookup", length="auto", parallel=2).run(WORDS))
    assert (len(begun), set(begun)) == (len(WORDS) - 2, {0, 1})


# -- faults ------------------------------------------------------------------------------------------


def poison(accept):
    def poisoned(self, seq, sampler, gate):
        if self.held(0, seq) >= 90 - 1 + 3:  # the third token after the longest prompt
            raise NumericError("a logit is not finite", code=9)
        return accept(self, seq, sampler, gate)

    return poisoned


def refuse(begin):
    def fail(answer, contexts, **how):
        if answer.index == 3:
            raise EngineError("no memory for a sampler")
        begin(answer, contexts, **how)

    return fail


@pytest.mark.parametrize(("where", "faulty", "kind"), [
    ((Engine, "accept"), poison, "NumericError"), ((Answer, "begin"), refuse, "EngineError"),
])  # fmt: skip
def test_fault_is_one_records_alone(open_batch, reference, monkeypatch, where, faulty, kind):
    monkeypatch.setattr(*where, faulty(getattr(*where)))
    batch = open_batch(parallel=4)
    found = {r.index: r for r in batch.run(WORDS)}
    assert found[3].error.type == kind
    assert [found[i].text for i in range(len(WORDS)) if i != 3] == reference[:3] + reference[4:]
    assert len(batch._scheduler.prefixes.texts) == 4


@pytest.mark.parametrize(("step", "k"), [
    ("verify", 1), ("verify", 2), ("verify", 5), ("verify", 20), ("accept", 31),
])  # fmt: skip
def test_transient_fault_loses_and_doubles_nothing(
    open_batch, submit, reference, monkeypatch, step, k
):
    calls, real = iter(range(1, 100_000)), getattr(Engine, step)

    def flaky(self, *how):
        if next(calls) == k:
            raise EngineError("it failed", code=5)
        return real(self, *how)

    monkeypatch.setattr(Engine, step, flaky)
    batch = open_batch(parallel=4)
    heard = {i: [] for i in range(len(WORDS))}
    submit(batch, WORDS, lambda i: heard[i].append)
    found = {result.index: result.text for result in batch.stream()}
    assert [found[i] for i in heard] == reference
    assert ["".join(piece.text for piece in heard[i][:-1]) for i in heard] == reference


def test_cancel_ends_the_run_and_the_next_one_is_whole(open_batch, reference):
    batch = open_batch(parallel=2)
    found = []

    def cancel_after_two():
        for result in batch.run(WORDS):
            found.append(result)
            if len(found) == 2:
                batch.cancel()

    with pytest.raises(Cancelled):
        cancel_after_two()
    assert len(found) >= 2
    assert texts(batch, WORDS) == reference


def test_a_cancelled_answer_leaves_alone(open_batch, submit, reference):
    batch = open_batch(parallel=2)

    def hear(brought):
        if getattr(brought, "tokens", ()):  # the longest runs first, the shortest last
            asked[3].cancelled = asked[0].cancelled = True

    asked = submit(batch, WORDS, {3: hear}.get)
    found = {result.index: result for result in batch.stream()}
    assert {i for i in found if found[i].finish_reason == "cancelled"} == {0, 3}
    assert (reference[3].startswith(found[3].text), found[0].text) == (True, "")
    kept = [i for i in range(len(WORDS)) if i not in (0, 3)]
    assert [found[i].text for i in kept] == [reference[i] for i in kept]


def test_prompts_that_begin_alike_wait_for_the_first(open_batch):
    groups = ["the quick brown fox jumps over ", "a lazy dog sleeps under the tree "]
    prompts = [group + word for word in ("a", "bc", "def") for group in groups]
    batch = open_batch(parallel=6, max_tokens=4)
    assert all(result.error is None for result in batch.run(prompts))
    # the last token of a prompt is its answer's first row
    own = sum(len(prompt) - 1 for prompt in prompts) - 2 * sum(map(len, groups))
    assert batch.stats()["prefix_tokens"] == max(map(len, groups))
    assert counters(batch._contexts.engine).rows[0] == own + 4 * len(prompts)


def test_a_beginning_that_is_just_long_enough_is_waited_for(open_batch):
    for shared in (MIN_TOKENS, MIN_TOKENS - 1):
        prompts = ["abcdefgh ijklmnop"[:shared] + letter * 9 for letter in "xyz"]
        batch = open_batch(parallel=3, max_tokens=4)
        assert all(result.error is None for result in batch.run(prompts))
        once = (2 if shared == MIN_TOKENS else 0) * shared
        own = sum(len(prompt) - 1 for prompt in prompts) - once
        assert counters(batch._contexts.engine).rows[0] == own + 4 * len(prompts)


def test_an_answer_that_takes_too_long_fails_alone(open_batch):
    slow, quick = (
        open_batch(settings=Settings(max_tokens=24, raw=True, timeout=s)) for s in (1e-9, 60.0)
    )
    assert {result.error.type for result in slow.run(WORDS[:4])} == {"DeadlineExceeded"}
    assert [result.error for result in quick.run(WORDS[:4])] == [None] * 4
    assert quick.identity() == slow.identity()


def test_an_answer_that_is_no_call_ends_no_output():
    result = RecordResult(index=0, id="a", prompt_sha256="", text="<tool_call>" + "[" * 100_000)
    assert b"tool_call" in output_line(result, "run", form="chat")
