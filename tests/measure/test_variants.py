"""Variants of answering side by side: texts are what each would give alone."""

import math
from contextlib import closing

import pytest
from measure.tasks import MeasureError
from measure.variants import SideBySide, parse_variant, parse_variants

from pyspec.errors import OptionError
from pyspec.sampling.options import Sampling

PROMPT = list(range(3, 20))
GREEDY = Sampling(temperature=0.0, seed=1)


@pytest.fixture
def answers(tiny_target, tiny_draft):
    def run(variants, sampling=GREEDY, drafting="", rate=0.0):
        named = parse_variants(variants)
        with side_by_side(tiny_target, drafting or f"lookup+{tiny_draft}", named) as sides:
            rates = {v.name: rate for v in named}
            turns = sides.answer([(v, sampling) for v in named], PROMPT, rates)
        return dict(zip([v.name for v in named], turns, strict=True))

    return run


def side_by_side(target, draft, named, n_ctx=128, max_tokens=40, **more):
    size = {"n_ctx": n_ctx, "max_tokens": max_tokens, "n_threads": 1, **more}
    return closing(SideBySide(str(target), str(draft), named, **size))


@pytest.mark.parametrize(("text", "draft_max", "extras", "first"), [
    ("plain", 0, {}, None),
    ("strict+fixed:4", 4, {}, None),
    ("plain+temp:0.3", 0, {"temp": 0.3}, None),
    ("margin/gap=0.5+random", 0, {"random": 0.0}, None),
    ("margin+fixed:3+thin@80", 3, {"thin": 0.0}, 80),
])  # fmt: skip
def test_a_variant_is_a_mode_and_what_is_tried_on_it(text, draft_max, extras, first):
    variant = parse_variant(text)
    assert (variant.draft_max, variant.extras, variant.first) == (draft_max, extras, first)
    assert variant.name == text.removesuffix("@80")


@pytest.mark.parametrize(
    "text",
    ["margin", "strict+thin+fixed:4", "plain+temp:x", "plain@x", "plain@", "plain,plain", ""],
)
def test_variants_that_mean_nothing_are_refused(text):
    with pytest.raises(OptionError):
        parse_variants(text)


def test_strict_variants_are_plain_decoding(answers, tiny_target, open_plain):
    strict = "strict+fixed:1,strict+fixed:4,strict+fixed:4+lookup,strict+fixed:8+model"
    found = answers(f"plain,{strict}")
    stream = open_plain(tiny_target).generate(PROMPT, temp=0.0)
    plain = tuple(token for _, token in zip(range(40), stream))
    assert {tuple(turn.tokens) for turn in found.values()} == {plain}
    assert found["strict+fixed:8+model"].speculation["accepted"] > 0
    assert found["plain"].speculation["verified"] == 0


def test_a_draft_that_reads_states_goes_on_from_a_shared_prompt(answers, tiny_eagle3):
    found = answers("plain,strict+fixed:1,strict+fixed:4", drafting=str(tiny_eagle3))
    assert len({tuple(turn.tokens) for turn in found.values()}) == 1
    assert found["strict+fixed:4"].speculation["verified"] > 0


def test_each_sequence_of_such_a_draft_has_room_for_the_prompt(tiny_target, tiny_eagle3):
    """It reads the prompt once a sequence; and where a draft fails in spite of that, no figure is made of it."""
    named = parse_variants(",".join(f"strict+fixed:{k}+model" for k in (1, 2, 3, 4)))
    with side_by_side(tiny_target, tiny_eagle3, named, n_ctx=256, max_tokens=4) as sides:
        due = [(variant, GREEDY) for variant in named]
        turns = sides.answer(due, PROMPT * 14, {})
        assert all(turn.speculation["verified"] > 0 for turn in turns)
        sides._loop.failed.append("the draft")
        with pytest.raises(MeasureError, match="the draft failed"):
            sides.answer(due, PROMPT, {})


def test_an_open_gate_relaxes_and_thin_less(answers):
    found = answers("margin/theta=0/gap=inf+fixed:4,margin/theta=0/gap=inf+thin+fixed:4")
    free, thin = (turn.speculation for turn in found.values())
    assert free["open"] >= free["relaxed"] > 4
    assert thin["relaxed"] < free["relaxed"]


def test_random_deviates_as_often_as_it_is_told_and_drafts_nothing(answers):
    """Never at rate 0, at every open gate at rate 1: those are all places where the runner-up could be taken."""
    variant = "margin/theta=0/gap=0.5+random"
    never, always = answers(f"plain,{variant}"), answers(f"plain,{variant}", rate=1.0)
    assert never[variant].tokens == never["plain"].tokens
    assert always[variant].speculation["relaxed"] == always[variant].speculation["open"] > 0
    assert always[variant].tokens != always["plain"].tokens
    assert always[variant].speculation["verified"] == 0
    assert 0.0 < always[variant].speculation["relaxed_nats"] < 0.5 * len(always[variant].tokens)


HOT = Sampling(temperature=2.0, top_k=0, seed=3)


def test_sampled_answers_draw_the_same_numbers_whatever_is_drafted(answers):
    found = answers("plain,strict+fixed:1,strict+fixed:4,margin/theta=1+fixed:4", HOT)
    assert len({tuple(turn.tokens) for turn in found.values()}) == 1


def test_apart_draws_llama_cpps_numbers(answers):
    found = answers("strict+fixed:4,strict+fixed:4+apart,strict+fixed:1+apart,plain", HOT)
    coupled, apart, shorter, plain = (turn.tokens for turn in found.values())
    assert coupled == plain
    assert apart == shorter != coupled


def test_a_gate_counts_as_open_only_where_both_are_left_to_draw_from(answers):
    """Min-p leaves no runner-up 3 nats behind, however wide the gate, where llama.cpp draws; greedy choices know no min-p."""
    gaps = "inf", f"{-math.log(0.05):.9f}"
    wide, near = (f"margin/theta=0/gap={gap}+random" for gap in gaps)
    found = answers(f"{wide},{near}")
    assert found[wide].speculation["open"] > found[near].speculation["open"]
    wide, near = (f"margin/theta=0/gap={gap}+apart+random" for gap in gaps)
    hot = answers(f"{wide},{near}", Sampling(temperature=1.0, seed=3))
    assert hot[wide].speculation["open"] == hot[near].speculation["open"] > 0


def test_seeds_side_by_side_say_what_each_says_alone(tiny_target, tiny_draft):
    named = parse_variants("strict+fixed:4,margin/theta=0/gap=inf+fixed:4")
    seeds = [Sampling(temperature=2.0, seed=seed) for seed in (3, 4)]
    with side_by_side(tiny_target, tiny_draft, named, max_tokens=20, seeds=2) as sides:
        due = [(variant, seed) for seed in seeds for variant in named]
        together = [turn.tokens for turn in sides.answer(due, PROMPT, {})]
        alone = [sides.answer([one], PROMPT, {})[0].tokens for one in due]
    assert together == alone
    assert len({tuple(tokens) for tokens in together}) == 4
