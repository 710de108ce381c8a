"""Recorded rounds: what they say is so, and what is written is read again."""

import gzip

import pytest
from measure.contenders import Ours
from measure.pair import by_position, learned_from, record, record_answer, save_prior
from measure.questions import Question
from measure.simulate import Answer, Chain, load_rounds, save_rounds
from measure.tasks import Options, parse_mode

from pyspec.draft.acceptance import Acceptance
from pyspec.draft.stopping import forecast
from pyspec.engine.profiles import SideFile, prior_learned
from pyspec.errors import InputError
from pyspec.sampling.options import Sampling

PROMPT = [5, 6, 7, 5, 6]
N, KMAX = 20, 4


@pytest.fixture
def recorded(open_llama, tiny_target, tiny_draft, tiny_companion):
    llm = open_llama(tiny_target, draft=f"lookup+{tiny_draft}", companion=tiny_companion)
    steps = llm.steps(PROMPT, Sampling(temperature=0.0), max_tokens=N)
    answer = [token.id for step in steps for token in step.tokens]
    found = record_answer(llm, PROMPT, max_tokens=N, kmax=KMAX)
    return llm, answer, found


def test_every_position_but_the_first_has_a_model_chain_up_to_the_end(recorded):
    """The first token does not wait for a draft, and the last has no room for one."""
    _, answer, found = recorded
    chains = [(c.t, c.n) for c in found.models.values()]
    assert chains == [(t, min(KMAX, N - t - 1)) for t in range(1, N - 1)]
    assert found.length == len(answer) == N


def test_matches_are_those_of_fixed_verification(recorded):
    llm, answer, found = recorded
    model = found.models
    llm.assembly.engine.set_tokens(0, [])
    fixed = Ours(llm, parse_mode(f"fixed:{KMAX}+strict+model"))
    fixed.forget()
    t = 0
    for step in fixed.steps(PROMPT, N, Options()):
        accepted = len(step.tokens) - 1
        if t in model and t + KMAX < N:
            assert accepted == model[t].matched
        t += len(step.tokens)
    assert t == len(answer)


def test_what_is_written_is_read_again_and_other_content_refused(recorded, tmp_path):
    path = tmp_path / "rounds.gz"
    save_rounds(path, [recorded[2]])
    assert load_rounds(path) == [recorded[2]]
    for data in (b"", b"{}", b"PK\x03\x04", gzip.compress(b""), gzip.compress(b"\xc1")):
        path.write_bytes(data)
        with pytest.raises(InputError, match="was not written by"):
            load_rounds(path)


def chain(t, n, matched, p=0.9):
    return Chain(t, n, matched, p=[p] * n)


def answer(*chains):
    return [Answer(40, 64, {chain.t: chain for chain in chains}, {})]


def test_acceptance_counts_only_what_was_observed():
    chains = chain(1, 3, 3), chain(2, 3, 1), chain(3, 2, 0)
    assert by_position(answer(*chains), 4) == [2 / 3, 0.5, 1.0]


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
