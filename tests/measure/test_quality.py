"""Figures of variants against a control, and the verdict."""

from contextlib import closing

import pytest
from helpers.making import record, turn
from measure.quality import (
    NATS,
    ROUGE,
    VARIETY,
    conclusion,
    distinct_4,
    figures_of,
    variety,
)
from measure.questions import Question
from measure.tasks import Options
from measure.variants import SideBySide, answer_all, parse_variants, rates

QUESTIONS = [Question(q, "qa", ["a"]) for q in range(1, 10)]
CONTROL, MARGIN = "strict+fixed:4", "margin+fixed:4"
CIRCLE = [7, 8] * 12


def run(who, nats=0.5, *, tokens=range(24), rounds=4):
    counts = {"rounds": rounds, "relaxed": 0, "open": 0}
    said = {"nats": [nats] * len(tokens), "speculation": counts}
    return [record(who, q.question_id, turn([*tokens], **said)) for q in QUESTIONS]


def judged(*records):
    found = figures_of([r for group in records for r in group], QUESTIONS)
    return {figures.who: figures for figures in found}


def verdict(found):
    return conclusion(list(found.values()), parse_variants(",".join(found)))


def test_distinct_4_and_variety_of_known_texts():
    """By hand: 1 2 3 4 twice has five 4-grams, four different; two texts of two each that share one have three of four."""
    assert distinct_4([1, 2, 3, 4, 1, 2, 3, 4]) == 4 / 5
    assert distinct_4([1, 2, 3]) == 1.0
    assert variety([[1, 2, 3, 4, 5], [0, 1, 2, 3, 4]]) == 3 / 4
    assert variety([[1, 2], [1, 2]]) == 1.0


def test_seeds_that_say_the_same_are_no_variety():
    """Each answer is as good as the control's, but both seeds give one; with one seed nothing is said of variety."""
    own, base = run(MARGIN) + run(MARGIN), run(CONTROL) + run(CONTROL, tokens=[*range(50, 74)])
    for records in (own, base):
        for r in records[9:]:
            r.repeat = 1
    found = judged(base, own)
    assert (found[CONTROL].measures[VARIETY].mean, found[MARGIN].measures[VARIETY].mean) == (1, 0.5)
    assert found[MARGIN].worse == [VARIETY]
    assert VARIETY not in judged(run(CONTROL))[CONTROL].measures


def test_figures_are_over_the_first_variant():
    found = judged(run(CONTROL), run(MARGIN, 0.51, rounds=2))[MARGIN]
    assert found.measures[NATS].over.mean == pytest.approx(0.01)
    assert (found.length, found.gain, found.worse) == (12.0, 2.0, [NATS])


@pytest.mark.parametrize(("worse", "what"), [
    (run(MARGIN, 0.53), ["nats"]), (run(MARGIN, tokens=CIRCLE), ["looped", "distinct-4"]),
])  # fmt: skip
def test_what_is_worse_is_named(worse, what):
    assert judged(run(CONTROL), worse)[MARGIN].worse == what


@pytest.mark.parametrize("looped", [1, 2])
def test_as_many_looped_answers_as_chance_makes_do_not_count(looped):
    records = run(MARGIN, tokens=CIRCLE)[:looped] + run(MARGIN)[looped:]
    found = judged(run(CONTROL), records)[MARGIN]
    assert (found.looped, found.worse) == (looped, [])


def test_the_verdict_names_the_rule_that_brings_most():
    bad, good = "margin/gap=inf+fixed:4", MARGIN
    said = verdict(judged(run(CONTROL), run(bad, 0.6, rounds=1), run(good, rounds=2)))
    assert f"{good} brings most: 12.00 tokens a verify, +100 %" in said
    assert f"{bad} (+300 %: nats)" in said
    said = verdict(judged(run(CONTROL), run(MARGIN, 0.9)))
    assert f"{MARGIN} (+0 %: nats); the data support strict" in said


def test_a_rule_that_answered_fewer_is_compared_on_those_and_is_no_candidate():
    control = run(CONTROL)
    for r in control[3:]:
        r.turns[0].speculation = {"rounds": 12, "relaxed": 0, "open": 0}
    few = run("margin/gap=2+fixed:4", rounds=2)[:3]
    found = judged(control, few, run(MARGIN))
    assert found["margin/gap=2+fixed:4"].gain == 2.0
    assert f"{MARGIN} brings most" in verdict(found)


def test_random_variants_deviate_as_often_as_their_margin_did():
    """Relaxed over open of the margin variant with the same gate and draws, pulled to 0.15 while little is known."""
    coupled, apart = run(MARGIN), run("margin+fixed:4+apart")
    for r, relaxed in ((coupled, 20), (apart, 0)):
        for one in r:
            one.turns[0].speculation.update(relaxed=relaxed, open=40)
    variants = parse_variants(f"{MARGIN},margin+random")
    assert rates([], variants) == {"margin+random": 0.15}
    assert rates(coupled, variants) == {"margin+random": (180 + 3) / (360 + 20)}
    variants = parse_variants(f"{MARGIN},margin+fixed:4+apart,margin+apart+random")
    assert rates([*coupled, *apart], variants) == {"margin+apart+random": 3 / (360 + 20)}


@pytest.fixture
def asked(tiny_ascii, tmp_path):
    """Answers of variants to two questions, and which were asked anew."""

    def ask(names, questions, repeat=1):
        how, steps = Options(max_tokens=8, repeat=repeat), []
        variants, size = parse_variants(names), {"n_ctx": 256, "max_tokens": 8, "n_threads": 1}
        with closing(
            SideBySide(str(tiny_ascii), "lookup", variants, seeds=repeat, **size)
        ) as sides:
            found = answer_all(sides, questions, how, tmp_path, lambda *step: steps.append(step[2]))
        return [(r.who, r.question_id, r.repeat) for r in found], steps

    return ask


def test_a_run_is_resumed(asked):
    questions = [Question(1, "a", ["abc"]), Question(2, "b", ["x" * 300])]
    first, _ = asked("plain,strict+fixed:2", questions, repeat=2)
    again, steps = asked("plain,strict+fixed:2", questions, repeat=2)
    assert sorted(first) == [(who, 1, n) for who in ("plain", "strict+fixed:2") for n in (0, 1)]
    assert (len(again), steps) == (4, ["b", "done"])


def test_a_variant_for_the_first_questions_answers_no_other(asked):
    questions = [Question(1, "a", ["abc"]), Question(2, "b", ["def"])]
    for names, wanted in (("plain,strict+fixed:2@1", [1]), ("plain,strict+fixed:2", [1, 2])):
        records, _ = asked(names, questions)
        assert [question for who, question, _ in records if who == "strict+fixed:2"] == wanted
    assert len(records) == 4


def test_answers_are_compared_with_references_where_there_are_some():
    pytest.importorskip("rouge_score")
    questions = [Question(q, "qa", ["a"], reference=["the cat sat"]) for q in range(1, 10)]
    good, bad = run(CONTROL), run(MARGIN)
    for r in good:
        r.turns[0].text = "the cat sat"
    control, margin = figures_of([*good, *bad], questions)
    assert (control.measures[ROUGE].mean, margin.measures[ROUGE].mean) == (1.0, 0.0)
    assert ROUGE in margin.worse
    assert ROUGE not in judged(good)[CONTROL].measures
