"""The write step against a tiny target: what is recorded is what llama.cpp says."""

import llama_cpp as lc
import numpy as np
import pytest
from click.testing import CliRunner

from models.recipe import target, write
from models.recipe.rows import Recording
from models.recipe.target import Target, best
from pyspec.errors import TrainingError


def alone(path, tokens):
    model = Target(path, 1, 512, threads=1, layers=(0, 1, 2))
    logits, states = model.decode([(t, i, 0) for i, t in enumerate(tokens)])
    found = logits.copy(), states.copy(), model.features(len(tokens))
    model.close()
    return found


def test_best_equals_a_full_sort():
    logits = np.random.default_rng(0).standard_normal((5, 4096)).astype(np.float32)
    ids, logp, lse = best(logits, 8)
    order = np.argsort(-logits, axis=1)[:, :8]
    np.testing.assert_array_equal(ids, order)
    wanted = np.take_along_axis(logits, order, 1) - lse[:, None]
    np.testing.assert_allclose(logp, wanted, rtol=1e-5)


@pytest.mark.parametrize("number", range(1, 13))
def test_recorded_rows_are_those_of_the_sequence_alone(recording, tiny_target, number):
    data = Recording(recording)
    rows = np.concatenate([data.sequence(0), data.sequence(number)])
    logits, states, features = alone(tiny_target, rows["token"].tolist())
    np.testing.assert_allclose(rows["features"], features, atol=0.02)
    np.testing.assert_allclose(rows["state"], states, atol=0.02)
    wanted = np.take_along_axis(logits, rows["ids"][:, :1].astype(np.int64), 1)[:, 0]
    assert (wanted >= logits.max(1) - 0.05).all()


def test_prompts_and_answers_are_whole(recording):
    data = Recording(recording)
    assert sorted(data.sequences["source"]) == [-1, *range(1, 13)]
    for number in range(1, 13):
        rows, record = data.sequence(number), data.sequences[number]
        assert (rows["next"][:-1] == rows["token"][1:]).all()
        assert record["ended"] == (rows["next"][-1] == 2)


def test_greedy_answers_follow_the_first_choice(recording):
    data = Recording(recording)
    cold = [i for i in range(1, 13) if data.sequences[i]["temperature"] == 0]
    for number in cold:
        rows = data.sequence(number)[data.sequences[number]["prompt"] - 1 :]
        assert (rows["next"] == rows["ids"][:, 0]).all()
    assert cold
    assert len(cold) < 12


def test_a_second_run_goes_on(tiny_target, tmp_path):
    queue = [(i, f"count to {i}") for i in range(8)]
    options = write.Options(slots=2, answer=6, longest_prompt=64, top=16, warm=0.0)
    write.write(tiny_target, tmp_path / "r", queue, 60, options, threads=1)
    first = len(Recording(tmp_path / "r").sequences)
    write.write(tiny_target, tmp_path / "r", queue, 100_000, options, threads=1)
    found = Recording(tmp_path / "r").sequences["source"]
    assert first < len(found)
    assert sorted(found) == list(range(-1, 8))


def test_a_full_disk_is_one_sentence(tiny_target, tmp_path):
    with pytest.raises(TrainingError, match="GB free and the step needs"):
        write.write(tiny_target, tmp_path / "r", [], 1 << 50, write.Options(slots=1), threads=1)


def test_command_names_a_missing_target(prompt_file, tmp_path):
    arguments = ["--target", str(tmp_path / "no.gguf"), "--prompts", str(prompt_file)]
    result = CliRunner().invoke(write.main, [*arguments, "--out", str(tmp_path / "r")])
    assert result.exit_code == 1
    assert "there is no file" in result.output


@pytest.mark.parametrize("works", [True, False])
def test_extra_buffers_that_crash_are_left_off(tiny_target, monkeypatch, works):
    """AMX's kernels end the process in some builds, as the trial of a file finds out."""
    loaded, load = [], lc.llama_model_load_from_file
    monkeypatch.setattr(target, "check_model", lambda *_, **__: works)
    monkeypatch.setattr(
        lc, "llama_model_load_from_file", lambda p, params: loaded.append(params.use_extra_bufts) or load(p, params)
    )  # fmt: skip
    Target(tiny_target, 1, 512, threads=1).close()
    assert loaded == [works]
