"""Figures of variants against a control, and the verdict."""

import sys
from contextlib import closing

import pytest
from helpers.making import SETUP, record, turn
from measure.quality import (
    NATS,
    ROUGE,
    VARIETY,
    QualityResults,
    conclusion,
    distinct_4,
    figures_of,
    unscored,
    variety,
)
from measure.quality_page import quality_page
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


def test_distinct_4_of_known_texts():
    """By hand: 1 2 3 4 twice has five 4-grams, four of them different."""
    assert distinct_4([1, 2, 3, 4, 1, 2, 3, 4]) == 4 / 5
    assert distinct_4([1, 2, 3]) == 1.0


def test_variety_of_known_texts():
    """By hand: two texts of two 4-grams each that share one have three different ones of four."""
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


@pytest.mark.parametrize(
    ("worse", "what"),
    [(run(MARGIN, 0.53), "nats"), (run(MARGIN, tokens=CIRCLE), "looped, distinct-4")],
)
def test_what_is_worse_is_named(worse, what):
    assert judged(run(CONTROL), worse)[MARGIN].worse == what.split(", ")


@pytest.mark.parametrize("looped", [1, 2])
def test_as_many_looped_answers_as_chance_makes_do_not_count(looped):
    records = run(MARGIN, tokens=CIRCLE)[:looped] + run(MARGIN)[looped:]
    found = judged(run(CONTROL), records)[MARGIN]
    assert (found.looped, found.worse) == (looped, [])


def test_the_verdict_names_the_rule_that_brings_most():
    bad, good = "margin/gap=inf+fixed:4", MARGIN
    found = judged(run(CONTROL), run(bad, 0.6, rounds=1), run(good, rounds=2))
    said = conclusion(list(found.values()), parse_variants(",".join(found)))
    assert f"{good} brings most: 12.00 tokens a verify, +100 %" in said
    assert f"{bad} (+300 %: nats)" in said


def test_a_rule_that_answered_fewer_is_compared_on_those_and_is_no_candidate():
    control = run(CONTROL)
    for r in control[3:]:
        r.turns[0].speculation = {"rounds": 12, "relaxed": 0, "open": 0}
    few = run("margin/gap=2+fixed:4", rounds=2)[:3]
    found = judged(control, few, run(MARGIN))
    assert found["margin/gap=2+fixed:4"].gain == 2.0
    assert f"{MARGIN} brings most" in conclusion(
        list(found.values()), parse_variants(",".join(found))
    )


def test_the_verdict_where_every_rule_is_worse():
    found = judged(run(CONTROL), run(MARGIN, 0.9))
    said = conclusion(list(found.values()), parse_variants(",".join(found)))
    assert f"{MARGIN} (+0 %: nats); the data support strict" in said


def test_the_verdict_says_what_the_sample_could_have_shown():
    """2.8 standard errors: of nine questions a third of which loop, sqrt(2 / 9 / 8) times that."""
    own = run(MARGIN, tokens=CIRCLE)[:3] + run(MARGIN)[3:]
    found = judged(run(CONTROL), own)
    said = conclusion(list(found.values()), parse_variants(",".join(found)))
    assert "in looped of 0.467, in distinct-4 of" in said


def test_random_variants_deviate_as_often_as_their_margin_did():
    """Relaxed over open of the margin variant with the same gate, pulled to 0.15 while little is known."""
    records = run(MARGIN)
    for r in records:
        r.turns[0].speculation.update(relaxed=20, open=40)
    variants = parse_variants(f"{MARGIN},margin+random")
    assert rates([], variants) == {"margin+random": 0.15}
    assert rates(records, variants) == {"margin+random": (180 + 3) / (360 + 20)}


def test_a_run_is_resumed(tiny_ascii, tmp_path):
    variants, how = parse_variants("plain,strict+fixed:2"), Options(max_tokens=8, repeat=2)
    questions = [Question(1, "a", ["abc"]), Question(2, "b", ["x" * 300])]
    asked = []
    with closing(
        SideBySide(
            str(tiny_ascii), "lookup", variants, n_ctx=256, max_tokens=8, seeds=2, n_threads=1
        )
    ) as sides:
        first = answer_all(sides, questions, how, tmp_path)
        again = answer_all(sides, questions[:], how, tmp_path, lambda *step: asked.append(step))
    assert sorted((r.who, r.question_id, r.repeat) for r in first) == [
        ("plain", 1, 0), ("plain", 1, 1), ("strict+fixed:2", 1, 0), ("strict+fixed:2", 1, 1)
    ]  # fmt: skip
    assert len(again) == 4
    assert [step[2] for step in asked] == ["b", "done"]


def test_a_variant_for_the_first_questions_answers_no_other(tiny_ascii, tmp_path):
    how = Options(max_tokens=8)
    questions = [Question(1, "a", ["abc"]), Question(2, "b", ["def"])]
    for names in ("plain,strict+fixed:2@1", "plain,strict+fixed:2"):
        variants = parse_variants(names)
        with closing(
            SideBySide(str(tiny_ascii), "lookup", variants, n_ctx=64, max_tokens=8, n_threads=1)
        ) as sides:
            records = answer_all(sides, questions, how, tmp_path)
        strict = [r.question_id for r in records if r.who == "strict+fixed:2"]
        assert strict == ([1] if "@" in names else [1, 2])
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


def test_a_page_says_that_references_were_left_out(monkeypatch):
    """Where the package that scores them is missing; else a reader would take them for compared."""
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    questions = [Question(q, "qa", ["a"], reference=["the cat sat"]) for q in range(1, 10)]
    figures = figures_of(run(CONTROL), questions)
    page = quality_page(QualityResults("t", "c", SETUP, figures, "v", unscored(questions)))
    assert "References of 9 questions were not compared" in page
    assert unscored(QUESTIONS) == 0
    monkeypatch.undo()
    assert "References of" not in quality_page(QualityResults("t", "c", SETUP, figures, "v"))


def test_a_random_variant_that_draws_apart_follows_a_margin_that_does():
    coupled, apart = run(MARGIN), run("margin+fixed:4+apart")
    for r, relaxed in ((coupled, 20), (apart, 0)):
        for one in r:
            one.turns[0].speculation.update(relaxed=relaxed, open=40)
    variants = parse_variants(f"{MARGIN},margin+fixed:4+apart,margin+apart+random")
    assert rates([*coupled, *apart], variants) == {"margin+apart+random": 3 / (360 + 20)}
