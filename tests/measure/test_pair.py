"""What recorded rounds of a pair teach, and recording within its time."""

import pytest
from measure.pair import by_position, learned_from, record, save_prior
from measure.questions import Question
from measure.simulate import Answer, Chain

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.stopping import forecast
from pyspec.engine.profiles import SideFile, prior_learned
from pyspec.errors import ProfileError


def chain(t, n, matched, p=0.9):
    return Chain(t, n, matched, p=[p] * n)


def answer(*chains):
    return [Answer(40, 64, {chain.t: chain for chain in chains}, {})]


def test_acceptance_counts_only_what_was_observed():
    assert by_position(answer(chain(1, 3, 3), chain(2, 3, 1), chain(3, 2, 0)), 4) == [
        2 / 3,
        0.5,
        1.0,
    ]


@pytest.mark.parametrize(("matched", "likely"), [(4, True), (0, False)])
def test_recorded_rounds_teach_acceptance(matched, likely):
    taught = learned_from(answer(*(chain(t, 4, matched) for t in range(1, 40))))
    assert (forecast(taught, chain(0, 4, 0).draft(4)).without[0] > 0.5) is likely


def test_a_pair_is_recorded_until_its_time_is_up(open_llama, tiny_ascii):
    llm = open_llama(tiny_ascii, draft=tiny_ascii)
    questions = [Question(i, "c", ["abcabc"]) for i in range(3)]
    answers = record(llm, questions, kmax=3, max_tokens=12)
    assert [each.length for each in answers] == [12] * 3
    assert by_position(answers, 3)
    assert record(llm, questions, budget_s=-1.0) == []


@pytest.mark.parametrize("coupled", [True, False])
def test_what_one_run_learned_joins_what_is_known(tmp_path, coupled):
    draft = tmp_path / "d.gguf"
    draft.write_bytes(b"weights")
    sides = [SideFile(draft, draft.stat().st_size)]
    first, second = Acceptance(), Acceptance()
    for _ in range(50):
        first.calibration.update(0, 3, True)
        second.calibration.update(0, 9, True)
    save_prior(sides, first, coupled=not coupled)
    save_prior(sides, second, coupled=coupled)
    known = prior_learned(sides)
    tables = known.coupled, known.calibration
    assert tables[not coupled] == second.calibration
    assert tables[coupled] == first.calibration


def test_without_a_draft_there_is_nothing_to_write_a_prior_for():
    with pytest.raises(ProfileError, match="no draft model"):
        save_prior([], Acceptance(), coupled=False)
