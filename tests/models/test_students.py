"""From a recording to a GGUF: training, resuming, exporting, and llama.cpp's opinion of it."""

import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from pyspec.errors import TrainingError

torch = pytest.importorskip("torch", reason="the recipe needs the extra [train]")

from helpers.make_target import write_target  # noqa: E402

from models.recipe import evaluate, export, gguf_io, train  # noqa: E402
from models.recipe.rows import Recording  # noqa: E402
from models.recipe.student import read_student, rollout_mask  # noqa: E402
from models.recipe.target import Target  # noqa: E402

SIZES = [
    "--width", "32", "--layers", "2", "--heads", "2", "--kv-heads", "1", "--head", "16", "--ff", "64", "--threads",
    "1",
]  # fmt: skip


def run_train(target, data, out, *more):
    arguments = ["--target", str(target), "--data", str(data), "--out", str(out)]
    return CliRunner().invoke(train.main, [*arguments, "--tokens", "128", *more])


@pytest.fixture(scope="module")
def plain_run(tiny_target, recording, tmp_path_factory):
    out = tmp_path_factory.mktemp("plain")
    result = run_train(tiny_target, recording, out, *SIZES, "--steps", "6")
    assert result.exit_code == 0, result.output
    return out


def exported(run, target, data, out, kind):
    export.export(run / "student.pt", target, [data], out, kind, "tiny")
    return out


def llama_logits(path, tokens):
    model = Target(path, 1, 256, threads=1)
    logits, _ = model.decode([(token, i, 0) for i, token in enumerate(tokens)])
    found = logits.copy()
    model.close()
    return found


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 0.02), ("q8_0", 0.05), ("q4_0", 0.08)])
def test_llama_computes_what_torch_does(
    plain_run, tiny_target, recording, tmp_path, kind, tolerance
):
    """The GGUF read back into torch gives llama.cpp's logits up to its rounding of activations."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", kind)
    tokens = Recording(recording).sequence(1)["token"].tolist()
    logits = llama_logits(path, tokens)
    student = read_student(gguf_io.Source(path))
    with torch.no_grad():
        wanted = student.states(torch.tensor([tokens]))[0] @ student.embedding.weight.T
    error = np.abs(logits - wanted.numpy()).max() / np.abs(wanted.numpy()).max()
    assert error < tolerance


def test_f32_file_holds_the_trained_weights(plain_run, tiny_target, recording, tmp_path):
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "f32")
    student, _ = export.load_student(plain_run / "student.pt")
    back = read_student(gguf_io.Source(path)).state_dict()
    for name, weight in student.state_dict().items():
        assert torch.equal(weight, back[name]), name


def test_mask_of_step_two():
    wanted = [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1]]
    assert rollout_mask(3, 2).int().tolist() == wanted


def test_nan_keeps_the_checkpoint(plain_run, tiny_target, recording, tmp_path):
    run = shutil.copytree(plain_run, tmp_path / "run")
    state = torch.load(run / "student.pt", weights_only=False)
    state["student"]["norm.weight"][:] = float("nan")
    torch.save(state, run / "student.pt")
    before = (run / "student.pt").read_bytes()
    result = run_train(tiny_target, recording, run, *SIZES, "--steps", "9")
    assert result.exit_code == 1
    assert "the loss is not a number at step 6" in result.output
    assert (run / "student.pt").read_bytes() == before


def test_other_architecture_is_refused(tmp_path):
    path = write_target(tmp_path / "other.gguf", "gpt2")
    with pytest.raises(TrainingError, match="has architecture gpt2"):
        gguf_io.Source(path)


def test_draft_of_another_vocabulary_is_refused(
    plain_run, tiny_target, recording, tmp_path, monkeypatch
):
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "f32")
    real = gguf_io.Source.field

    def field(source, name, default=None):
        other = source.path == tiny_target and name.endswith("tokens")
        return ["other"] if other else real(source, name, default)

    monkeypatch.setattr(evaluate.Source, "field", field)
    with pytest.raises(TrainingError, match="has another vocabulary"):
        evaluate.Replay(path, tiny_target, 1)


def test_tokenizer_and_template_are_the_targets(plain_run, tiny_target, recording, tmp_path):
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "q4_0")
    target, draft = gguf_io.Source(tiny_target), gguf_io.Source(path)
    for key in target.reader.fields:
        if key.startswith("tokenizer."):
            assert draft.field(key) == target.field(key), key
