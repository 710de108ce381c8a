"""`bench/pair.py`: rounds for replays, and a prior beside the draft."""

import shutil

from click.testing import CliRunner

from pyspec.engine.profiles import read_prior


def test_a_pair_is_recorded_and_given_a_prior(script, tiny_ascii, tmp_path):
    draft, rounds = tmp_path / "draft.gguf", tmp_path / "rounds.gz"
    shutil.copy(tiny_ascii, draft)
    words = [
        "-m", str(tiny_ascii), "--draft", str(draft), "--trust-model", "-c", "1024", "-t", "1",
        "--category", "writing", "--seconds", "1", "-n", "8", "--draft-max", "3", "--prior", "--rounds", str(rounds),
    ]  # fmt: skip
    done = CliRunner().invoke(script("pair").pair, words)
    assert done.exit_code == 0, done.output
    assert 0.0 <= float(done.stdout.split(", ")[0]) <= 1.0
    assert rounds.stat().st_size > 0
    assert read_prior(draft) is not None
