"""Ways of answering side by side: texts are what each way would give alone."""

from __future__ import annotations

import pytest

from pyspec.errors import OptionError
from pyspec.measure.sides import Sides, parse_way, parse_ways
from pyspec.sampling import Sampling

PROMPT = list(range(3, 20))
GREEDY = Sampling(temperature=0.0, seed=1)


@pytest.fixture
def answers(tiny_target, tiny_draft):
    """Turns by way, of one prompt over a tiny pair."""

    def run(ways: str, sampling: Sampling = GREEDY, drafting: str = "", **rates: float) -> dict:
        named = parse_ways(ways)
        word = drafting or f"lookup+{tiny_draft}"
        sides = Sides(str(tiny_target), word, named, n_ctx=128, max_tokens=40, n_threads=1)
        try:
            turns = sides.answer(PROMPT, sampling, {w.name: rates.get("rate", 0.0) for w in named})
        finally:
            sides.close()
        return dict(zip([w.name for w in named], turns, strict=True))

    return run


@pytest.mark.parametrize(
    ("text", "draft_max", "extras"),
    [
        ("plain", 0, {}),
        ("strict+fixed:4", 4, {}),
        ("plain+temp:0.3", 0, {"temp": 0.3}),
        ("margin/gap=0.5+random", 0, {"random": 0.0}),
        ("margin+share:0.02+fixed:3", 3, {"share": 0.02}),
    ],
)
def test_a_way_is_a_mode_and_what_is_tried_on_it(text, draft_max, extras):
    """Length and extras are read off the parts."""
    way = parse_way(text)
    assert (way.draft_max, way.extras) == (draft_max, extras)


@pytest.mark.parametrize(
    "text", ["margin", "strict+thin+fixed:4", "margin+share:x+fixed:4", "plain,plain", ""]
)
def test_ways_that_mean_nothing_are_refused(text):
    """No length, no margin to change, no number, twice, none."""
    with pytest.raises(OptionError):
        parse_ways(text)


def test_strict_ways_are_plain_decoding(answers):
    """Whatever is drafted, and beside whichever neighbours."""
    found = answers(
        "plain,strict+fixed:1,strict+fixed:4,strict+fixed:4+lookup,strict+fixed:8+model"
    )
    assert len({tuple(turn.tokens) for turn in found.values()}) == 1
    assert found["strict+fixed:8+model"].speculation["accepted"] > 0
    assert found["plain"].speculation["verified"] == 0


def test_a_draft_that_reads_states_goes_on_from_a_shared_prompt(answers, tiny_eagle3):
    """The prompt is read once, and its states go to every way."""
    found = answers("plain,strict+fixed:1,strict+fixed:4", drafting=str(tiny_eagle3))
    assert len({tuple(turn.tokens) for turn in found.values()}) == 1
    assert found["strict+fixed:4"].speculation["verified"] > 0


def test_plain_is_what_llama_gives(answers, tiny_target, open_plain):
    """The tokens of llama_cpp's own greedy decoding."""
    tokens = []
    for token in open_plain(tiny_target).generate(PROMPT, temp=0.0):
        tokens.append(token)
        if len(tokens) == 40:
            break
    assert answers("plain")["plain"].tokens == tokens


def test_an_open_gate_relaxes_and_a_cap_on_the_share_holds(answers):
    """With the gate always open the draft's runner-ups are taken; at most a tenth of them under share:0.1."""
    found = answers("margin/theta=0/gap=inf+fixed:4,margin/theta=0/gap=inf+share:0.1+fixed:4")
    free, bounded = found.values()
    assert free.speculation["relaxed"] > 0.1 * len(free.tokens)
    assert bounded.speculation["relaxed"] <= 0.1 * len(bounded.tokens) + 4
    assert free.speculation["open"] >= free.speculation["relaxed"]


def test_random_deviates_as_often_as_it_is_told_and_drafts_nothing(answers):
    """Never at rate 0, at every open gate at rate 1: those are all places where the runner-up could be taken."""
    way = "margin/theta=0/gap=0.5+random"
    never, always = answers(f"plain,{way}"), answers(f"plain,{way}", rate=1.0)
    assert never[way].tokens == never["plain"].tokens
    assert always[way].speculation["relaxed"] == always[way].speculation["open"] > 0
    assert always[way].tokens != always["plain"].tokens
    assert always[way].speculation["verified"] == 0


def test_thin_relaxes_less(answers):
    """Where z1 and z2 are far apart the runner-up is hardly ever taken."""
    found = answers("margin/theta=0/gap=inf+fixed:4,margin/theta=0/gap=inf+thin+fixed:4")
    all_, thin = (turn.speculation["relaxed"] for turn in found.values())
    assert thin < all_


def test_own_never_relaxes_what_lookup_drafts(answers):
    """With lookup alone nothing is relaxed."""
    ways = "margin/theta=0/gap=inf+fixed:4,margin/theta=0/gap=inf+own+fixed:4"
    free, own = answers(ways, drafting="lookup").values()
    assert own.speculation["relaxed"] == 0
    assert free.speculation["verified"] > 0


def test_a_margin_without_lookup_never_relaxes_what_lookup_drafts(answers):
    """The engine's own rule says the same as `own`, and relaxes what the model drafts."""
    ways = "margin/theta=0/gap=inf/lookup=0+fixed:4,margin/theta=0/gap=inf+own+fixed:4"
    rule, own = answers(ways).values()
    assert rule.tokens == own.tokens
    assert rule.speculation["relaxed"] == own.speculation["relaxed"] > 0


def test_nats_are_of_each_token_under_the_target(answers):
    """One for each; at temperature 0 and strict, of the likeliest."""
    found = answers("strict+fixed:4,plain+temp:5")
    strict, hot = found.values()
    assert len(strict.nats) == len(strict.tokens)
    assert sum(hot.nats) / len(hot.nats) > sum(strict.nats) / len(strict.nats)


def test_a_seed_repeats_an_answer(answers):
    """Sampled ways with one seed agree, with another they do not."""
    one, again = (answers("plain", Sampling(temperature=2.0, seed=3)) for _ in range(2))
    other = answers("plain", Sampling(temperature=2.0, seed=4))
    assert one["plain"].tokens == again["plain"].tokens != other["plain"].tokens
