"""From a recording to a GGUF: training, resuming, exporting, and llama.cpp's opinion of it."""

import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from pyspec.errors import TrainingError

torch = pytest.importorskip("torch", reason="the recipe needs the extra [train]")

from helpers.make_target import write_target  # noqa: E402
from rich.progress import Progress  # noqa: E402

from models.recipe import evaluate, export, gguf_io, train, trainer  # noqa: E402
from models.recipe.rows import Corpus, Recording  # noqa: E402
from models.recipe.student import read_student, rollout_mask  # noqa: E402
from models.recipe.target import Target  # noqa: E402
from models.recipe.trainer import SoftmaxIds  # noqa: E402

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


def test_resume_gives_the_same(tiny_target, recording, tmp_path):
    for name, stops in (("one", [6]), ("two", [3, 6])):
        for stop in stops:
            corpus = Corpus([recording], 448)
            plan = trainer.TrainingPlan(
                steps=6, tokens=128, softmax=SoftmaxIds(common=64), warmup=6
            )
            shape = {"width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head": 16, "ff": 64}
            run = train.prepare(
                tiny_target, corpus, train.StudentOptions(shape), plan, tmp_path / name
            )
            run.stop_at = stop
            run.run(Progress(disable=True))
    one, two = (export.load_student(tmp_path / n / "student.pt")[0] for n in ("one", "two"))
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(weight, two.state_dict()[name], msg=name)


def test_training_lowers_the_loss(tiny_target, recording, tmp_path):
    more = ["--steps", "60", "--rate", "0.01"]
    assert run_train(tiny_target, recording, tmp_path, *SIZES, *more).exit_code == 0
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    losses = [float(line.split(",")[column]) for line in lines[1:]]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert (tmp_path / "curve.png").stat().st_size > 0


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


def test_evaluate_prints_every_drafter(plain_run, tiny_target, recording, tmp_path):
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "q8_0")
    bench = tmp_path / "bench.jsonl"
    lines = [f'{{"category": "qa", "turns": ["what is {i}"]}}' for i in range(4)]
    bench.write_text("\n".join(lines))
    options = {"target": tiny_target, "bench": bench, "answers": tmp_path / "answers"}
    options |= {"draft": path, "every": 2, "threads": 1}
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    result = CliRunner().invoke(evaluate.main, arguments)
    assert result.exit_code == 0, result.output
    for name in ("lookup", "d"):
        assert name in result.output
