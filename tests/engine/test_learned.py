"""What rounds taught about a pair is kept by whoever answers, and is where the next process begins."""

import gc
import json
import time

import llama_cpp
import msgspec
import numpy as np
import pytest

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.costs import KeptTime
from pyspec.draft.switch import SwitchState
from pyspec.engine.profiles import MAX_CHANGE, PairFacts, SideFile, prior_curve, time_rows
from pyspec.machine.files import cache_dir
from pyspec.requests.records import Record, SpeculationBody
from pyspec.sampling.verification import Margin, Strict

PROMPT = "ab" * 12

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def quiet(monkeypatch):
    """Nobody else uses the machine; the list's item says otherwise."""
    busy = [False]
    monkeypatch.setattr("pyspec.engine.profiles.Watch.busy", lambda *_: busy[0])
    return busy


@pytest.fixture
def pair(open_llama, tiny_target, tiny_draft, quiet):
    """Opens the pair; each object is another process's, as far as the cache is concerned."""
    return lambda draft=tiny_draft, **more: open_llama(
        tiny_target, draft=draft, length="auto", **more
    )


def began(llm, rule=Strict(), draw="greedy"):  # noqa: B008 - frozen
    policy = llm.policies.new(None, rule, draw)
    return policy._drafting[0].seen, policy.learned


def facts():
    found = (json.loads(path.read_text())["fact"] for path in (cache_dir() / "facts").glob("*"))
    return [json.loads(fact) for fact in found if '"kinds"' in fact]


def teach(llm, rule=Strict(), draw="greedy", gain=-0.5):  # noqa: B008 - frozen
    """Ten rounds in which a draft lost, and tokens of one bin that were refused."""
    policy = llm.policies.of(None, rule, draw)
    for _ in range(10):
        policy._drafting[0].used(gain, 1.0)
        policy.learned.calibration.update(0, 20, False)


def taught(pair):
    """A process that learned."""
    llm = pair()
    teach(llm)
    llm.close()


def test_class_and_batch_keep_what_an_answer_taught(pair, open_batch):
    batch = open_batch()
    list(batch.run(["ab" * 8]))
    batch.close()
    assert [set(each["kinds"]) for each in facts()] == [{"strict greedy"}]
    llm = pair()
    llm.create_completion(PROMPT, max_tokens=20, temperature=0.0)
    llm.close()
    assert {*map(frozenset, (each["kinds"] for each in facts()))} == {frozenset({"strict greedy"})}


def test_an_object_that_is_dropped_keeps_it(tiny_target, tiny_draft, quiet):
    from pyspec import SpeculativeLlama

    before = len(facts())
    llm = SpeculativeLlama(str(tiny_target), draft=str(tiny_draft), n_ctx=256, trust=True)
    teach(llm)
    del llm
    gc.collect()
    assert len(facts()) == before + 1


def test_keeping_enters_none_of_numpys_error_states(pair, monkeypatch):
    """The garbage collector may keep it while numpy sets that context variable, and Python 3.11 crashes at a second time."""
    both = pair(), pair()
    entered = []
    monkeypatch.setattr(np.errstate, "__enter__", entered.append)
    monkeypatch.setattr(np.errstate, "__exit__", lambda *_: None)
    for llm in both:  # the second finds what the first wrote, and mixes both
        teach(llm)
        llm.pair_memory.keep()
    assert sum(sum(kind["calibration"]["seen"]) for kind in facts()[0]["kinds"].values()) > 0
    assert not entered


@pytest.fixture
def open_batch(tiny_target, tiny_draft, quiet):
    from pyspec.batch import Batch, Settings

    same = {
        "draft": str(tiny_draft),
        "n_ctx": 128,
        "settings": Settings(max_tokens=12),
        "trust": True,
    }
    return lambda **more: Batch(str(tiny_target), **{**same, **more})


def test_the_next_process_begins_there(pair):
    llm = pair()
    teach(llm)
    teach(llm, Margin(), gain=0.25)
    llm.close()
    again = pair()
    switch, learned = began(again)
    assert (switch.count, switch.mean) == pytest.approx((10.0, -0.5), rel=1e-3)
    assert learned.calibration.seen[20] == pytest.approx(10.0, rel=1e-3)
    assert began(again, Margin())[0].mean == 0.25
    fresh = Acceptance().under("coupled")
    assert began(again, draw="coupled") == (SwitchState(0, 0, 0), fresh)


def test_lookup_is_kept_where_tokens_are_drawn(pair):
    """One kind of greedy text teaches what harms with others."""
    llm = pair()
    for draw in ("greedy", "coupled"):
        llm.policies.of(None, Strict(), draw).learned.lookup.update(3, [False] * 4)
    llm.close()
    again = pair()
    fresh = Acceptance().lookup
    assert began(again)[1].lookup == fresh
    assert began(again, draw="coupled")[1].lookup != fresh


def test_a_margin_answer_on_a_strict_batch_teaches_the_margins_table(open_batch):
    batch = open_batch(parallel=2)
    loose = SpeculationBody(verify="margin", length="companion")
    list(batch.run([Record(id="a", prompt="ab" * 8, max_tokens=20, speculation=loose)]))
    made = (batch._policies.of("companion", rule, "greedy") for rule in (Strict(), Margin()))
    strict, margin = (sum(policy.learned.calibration.seen) for policy in made)
    assert (strict, margin > 0.0) == (0.0, True)


@pytest.fixture
def timed(monkeypatch):
    """The models whose rows were timed, where each row takes a millisecond."""
    models = []

    def time_rows(llm):
        models.append(llm)
        return {n: KeptTime(float(n), 3) for n in range(1, 17)}

    monkeypatch.setattr("pyspec.engine.profiles.time_rows", time_rows)
    return models


def test_rows_are_timed_before_the_first_answer_alone(pair, timed):
    for _ in range(3):
        llm = pair()
        assert llm.policies.curve.target.time(4) == pytest.approx(4.0)
        teach(llm)
        llm.close()
    assert len(timed) == 1


def test_without_drafts_no_rows_are_timed(pair, timed):
    pair(draft="none")
    assert timed == []


@pytest.mark.parametrize(("parallel", "times"), [(2, 0), (None, 1)])
def test_a_batch_without_drafts_times_rows_to_choose_how_many_answer(
    open_batch, timed, parallel, times
):
    open_batch(draft="none", parallel=parallel)
    assert len(timed) == times


@pytest.mark.parametrize(("is_quiet", "times"), [(False, 1), (True, 2)])
def test_rows_that_were_timed_beside_others_are_timed_again(
    pair, timed, quiet, monkeypatch, is_quiet, times
):
    """They count meanwhile: a look at each of them would cost more."""
    monkeypatch.setattr("pyspec.engine.profiles.is_quiet", lambda: is_quiet)
    quiet[0] = True
    taught(pair)
    quiet[0] = False
    for _ in range(2):
        llm = pair()
        assert llm.policies.curve.target.time(4) == pytest.approx(4.0)
        teach(llm)
        llm.close()
    assert len(timed) == times


def test_a_quiet_minute_makes_no_times_of_a_busy_one_sure(pair, timed, quiet):
    """A server keeps what it saw once a minute."""
    quiet[0] = True
    llm = pair()
    teach(llm)
    for now in (True, False):
        quiet[0] = now
        llm.pair_memory.keep()
        assert [each.get("busy") for each in facts()] == [True]


@pytest.mark.parametrize(("crowded", "kept"), [(False, True), (True, False)])
def test_times_of_rounds_are_kept_unless_others_used_the_machine(pair, timed, quiet, crowded, kept):
    taught(pair)
    llm = pair()
    teach(llm)
    for _ in range(20):
        llm.policies.curve.target.observe(3, 6.0)
        llm.policies.curve.target.observe(1, 1.0)
    quiet[0] = crowded
    llm.close()
    assert (pair().policies.curve.target.time(3) == pytest.approx(6.0, rel=0.1)) is kept


@pytest.mark.parametrize("n_batch", [512, 4])
def test_timing_leaves_nothing_in_the_context(open_llama, tiny_target, n_batch):
    llm = open_llama(tiny_target, draft="none", n_batch=n_batch)
    assert set(time_rows(llm)) == set(range(1, min(n_batch, 16) + 1))
    assert all(time.ms > 0.0 and time.seen == 3 for time in time_rows(llm).values())
    memory = llama_cpp.llama_get_memory(llm.ctx)
    assert llama_cpp.llama_memory_seq_pos_max(memory, 0) == -1
    text = llm.create_completion(PROMPT, max_tokens=12, temperature=0.0)["choices"][0]["text"]
    other = open_llama(tiny_target, draft="none")
    answer = other.create_completion(PROMPT, max_tokens=12, temperature=0.0)
    assert text == answer["choices"][0]["text"]


def test_other_files_or_threads_have_their_own(pair, open_llama, tiny_target, tiny_draft):
    taught(pair)
    assert began(pair(n_threads=2))[0].count == 0.0
    tiny_draft.write_bytes(tiny_draft.read_bytes())
    assert began(pair())[0].count == 0.0


def test_two_processes_at_once_add_to_each_other(pair):
    first, second = pair(), pair()
    teach(first, gain=0.5)
    teach(first, Margin())
    teach(second, gain=-0.5)
    first.close()
    second.close()
    again = pair()
    assert (began(again)[0].mean, began(again)[0].count) == pytest.approx((0.0, 10.0), rel=1e-3)
    assert began(again, Margin())[0].mean == -0.5


def test_what_is_old_counts_less(pair, monkeypatch):
    taught(pair)
    now = time.time()
    monkeypatch.setattr("pyspec.engine.profiles.time.time", lambda: now + 30 * 86400)
    assert began(pair())[0].count == pytest.approx(5.0, rel=1e-3)


def test_the_draft_draws_as_it_learned_to(pair):
    llm = pair()
    teach(llm)
    llm.assembly.engine.temper(2)
    llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)
    llm.close()
    assert pair().assembly.engine.temper() == 2


@pytest.mark.parametrize("fact", [
    "", "{", "[]", "{}", "[" * 5000, '{"kinds": {"strict greedy": {}}}', '{"temper": 9}',
    '{"target": {"1": [-1.0, 3]}}', '{"target": {"1": [9.0, 4]}}', '{"target": {"1": [9.0, 0]}}',
    '{"draft": {"0": [1.0, 3]}}', '{"day": 1e300}', '{"kinds": 5}',
])  # fmt: skip
def test_what_is_damaged_is_nothing(pair, fact):
    taught(pair)
    (record,) = [p for p in (cache_dir() / "facts").glob("*") if "kinds" in p.read_text()]
    record.write_text(json.dumps({**json.loads(record.read_text()), "fact": fact}))
    assert began(pair())[0].count == 0.0


def test_a_machine_that_was_slow_changes_no_times():
    """A row that takes more than three times as long as before was disturbed; the rest is kept."""
    one, two, step = KeptTime(10.0, 3), KeptTime(15.0, 3), KeptTime(2.0, 3)
    before = PairFacts(target={1: one, 2: two}, draft={1: step})
    stalled = KeptTime(10.0 * MAX_CHANGE + 1.0, 3)
    slow = PairFacts(target={1: stalled}, draft={1: stalled}, temper=1)
    assert slow.seen_before(before) == msgspec.structs.replace(before, temper=1)
    fast = PairFacts(target={1: step})
    assert fast.seen_before(before).target == {1: step, 2: two}


def test_a_draft_costs_its_share_where_a_target_has_no_facts(pair, tiny_draft, monkeypatch):
    """It is no reason to take any draft for dearer than its target."""
    llm = pair()
    monkeypatch.setattr("pyspec.engine.profiles.facts_of", lambda _: None)
    size = llama_cpp.llama_model_size(llm.model)
    curve = prior_curve(llm, [SideFile(tiny_draft, size // 4)])
    assert curve.draft.time(1) == pytest.approx(0.25 * curve.target.time(1), rel=0.01)
