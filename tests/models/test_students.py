"""From a recording to a GGUF: training, resuming, exporting, and llama.cpp's opinion of it."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pyspec.errors import TrainingError

torch = pytest.importorskip("torch", reason="the recipe needs the extra [train]")

import llama_cpp as lc  # noqa: E402
from make_target import write_target  # noqa: E402
from pyspec.models.recipe import evaluate, export, gguf_io, sidecar, train, trainer  # noqa: E402
from pyspec.models.recipe.losses import Sampling  # noqa: E402
from pyspec.models.recipe.net import Student, rollout_mask  # noqa: E402
from pyspec.models.recipe.rows import Corpus, Recording  # noqa: E402
from rich.progress import Progress  # noqa: E402

SIZES = [
    "--width",
    "32",
    "--layers",
    "2",
    "--heads",
    "2",
    "--kv-heads",
    "1",
    "--head",
    "16",
    "--ff",
    "64",
    "--threads",
    "1",
]
TARGET_SIZES = [
    "--width",
    "64",
    "--layers",
    "1",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--head",
    "16",
    "--ff",
    "96",
    "--threads",
    "1",
]


def run_train(target: Path, data: Path, out: Path, *more: str) -> Any:
    """Run the train command with small sizes."""
    arguments = ["--target", str(target), "--data", str(data), "--out", str(out)]
    return CliRunner().invoke(train.main, [*arguments, "--tokens", "128", *more])


@pytest.fixture(scope="module")
def plain_run(tiny_target: Path, recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An independent student after 6 steps."""
    out = tmp_path_factory.mktemp("plain")
    result = run_train(tiny_target, recording, out, *SIZES, "--steps", "6")
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def coupled_run(
    tiny_target: Path, recording: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A coupled student of the target's sizes after 6 steps, started from its second layer."""
    out = tmp_path_factory.mktemp("coupled")
    more = [*TARGET_SIZES, "--from-layers", "1", "--coupled", "--steps", "6"]
    result = run_train(tiny_target, recording, out, *more)
    assert result.exit_code == 0, result.output
    return out


def exported(run: Path, target: Path, data: Path, out: Path, kind: str) -> Path:
    """The run's student as a GGUF of one kind."""
    export.export(run / "student.pt", target, [data], out, kind, "tiny")
    return out


def llama_states(path: Path, batch: Any, count: int, vocab: int, width: int) -> Any:
    """(logits, states) that llama.cpp computes for a prepared batch."""
    model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
    assert model
    options = lc.llama_context_default_params()
    options.n_ctx, options.n_threads, options.n_threads_batch = 256, 1, 1
    options.embeddings, options.pooling_type = True, lc.LLAMA_POOLING_TYPE_NONE
    context = lc.llama_init_from_model(model, options)
    assert lc.llama_decode(context, batch) == 0
    get = lc.llama_get_logits, lc.llama_get_embeddings
    shapes = (count, vocab), (count, width)
    found = [
        np.ctypeslib.as_array(g(context), shape=s).copy() for g, s in zip(get, shapes, strict=True)
    ]
    lc.llama_free(context)
    lc.llama_model_free(model)
    return found


def batch_of(tokens: list[int] | None, vectors: np.ndarray | None) -> Any:
    """A llama_batch of one sequence, of tokens or of input vectors."""
    count = len(vectors) if tokens is None else len(tokens)
    batch = lc.llama_batch_init(count, 0 if vectors is None else vectors.shape[1], 1)
    batch.n_tokens = count
    for i in range(count):
        if tokens is not None:
            batch.token[i] = tokens[i]
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i, 1, 0, 1
    if vectors is not None:
        data = np.ascontiguousarray(vectors, np.float32)
        ctypes.memmove(batch.embd, data.ctypes.data, data.nbytes)
    return batch


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 0.02), ("q8_0", 0.05), ("q4_0", 0.08)])
def test_llama_computes_what_torch_does(
    plain_run: Path, tiny_target: Path, recording: Path, tmp_path: Path, kind: str, tolerance: float
) -> None:
    """The GGUF read back into torch gives llama.cpp's logits up to its rounding of activations."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", kind)
    tokens = Recording(recording).sequence(1)["token"].tolist()
    logits, _ = llama_states(path, batch_of(tokens, None), len(tokens), 320, 32)
    student = evaluate.read_student(path)
    with torch.no_grad():
        wanted = student.states(torch.tensor([tokens]))[0] @ student.embedding.weight.T
    error = np.abs(logits - wanted.numpy()).max() / np.abs(wanted.numpy()).max()
    assert error < tolerance


def test_f32_file_holds_the_trained_weights(
    plain_run: Path, tiny_target: Path, recording: Path, tmp_path: Path
) -> None:
    """Nothing is permuted or renamed on the way through the file."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "f32")
    student, _, _ = export.load_student(plain_run / "student.pt")
    back = evaluate.read_student(path).state_dict()
    for name, weight in student.state_dict().items():
        assert torch.equal(weight, back[name]), name


def test_coupled_input_goes_in_as_vectors(
    coupled_run: Path, tiny_target: Path, recording: Path, tmp_path: Path
) -> None:
    """Embedding + w_h @ state through llama_batch.embd is what the torch student computes."""
    path = exported(coupled_run, tiny_target, recording, tmp_path / "c.gguf", "q4_0")
    rows = Recording(recording).sequence(1)
    side = sidecar.load(path.with_suffix(".npz"))
    states = np.zeros((len(rows), 64), np.float32)
    states[1:] = rows["state"][:-1]
    embedding = gguf_io.Source(path).tensor("token_embd.weight")
    vectors = embedding[rows["token"]] + states @ side.w_h.astype(np.float32).T
    logits, own = llama_states(path, batch_of(None, vectors), len(rows), 320, 64)
    student = evaluate.read_student(path)
    with torch.no_grad():
        tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
        true = torch.from_numpy(rows["state"].astype(np.float32))[None]
        found = student.rollout(tokens, true, 1)[0][0]
    assert np.abs(own - found.numpy()).max() / np.abs(own).max() < 0.08
    wanted = (found @ student.embedding.weight.T).detach().numpy()
    assert np.abs(logits - wanted).max() / np.abs(wanted).max() < 0.08


def test_rollout_is_drafting_step_by_step(coupled_run: Path, recording: Path) -> None:
    """Step 3 at a position equals feeding true states, then twice the student's own state."""
    student, _, _ = export.load_student(coupled_run / "student.pt")
    rows = Recording(recording).sequence(2)
    tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
    true = torch.from_numpy(rows["state"].astype(np.float32))[None]
    place = 6
    with torch.no_grad():
        wanted = student.rollout(tokens, true, 3)[2][0, place]
        found = drafted(student, tokens, true, place)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


def drafted(student: Student, tokens: Any, true: Any, place: int) -> Any:
    """State at `place` when its token and the one before were drafted, in one causal pass each."""
    extra = torch.zeros(1, place + 1, student.shape.width)
    extra[:, 1 : place - 1] = student.from_target(true[:, : place - 2] / student.target_size)
    extra[:, place - 2] = student.from_target(true[:, place - 3] / student.target_size)
    states = student.states(tokens[:, : place + 1], extra)
    for own in (place - 1, place):
        extra[:, own] = student.from_self(states[:, own - 1] / student.self_size)
        states = student.states(tokens[:, : place + 1], extra)
    return states[0, place]


def test_mask_of_step_two() -> None:
    """At step 2 a row sees true-state keys before it and, of its own step, itself."""
    wanted = [[0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 1]]
    assert rollout_mask(3, 2).int().tolist() == wanted


def test_resume_gives_the_same(tiny_target: Path, recording: Path, tmp_path: Path) -> None:
    """Stopped after 3 of 6 steps and run again, the weights equal those of one run."""
    for name, stops in (("one", [6]), ("two", [3, 6])):
        for stop in stops:
            corpus = Corpus([recording], 448)
            plan = trainer.Plan(steps=6, tokens=128, sampling=Sampling(common=64), warmup=6)
            shape = {"width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head": 16, "ff": 64}
            run = train.prepare(tiny_target, corpus, train.Wanted(shape), plan, tmp_path / name)
            run.stop_at = stop
            run.run(Progress(disable=True), 1e9)
    one, two = (export.load_student(tmp_path / n / "student.pt")[0] for n in ("one", "two"))
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(weight, two.state_dict()[name], msg=name)


def test_training_lowers_the_loss(tiny_target: Path, recording: Path, tmp_path: Path) -> None:
    """Sixty steps on the tiny recording bring the loss well below the first one's."""
    more = ["--steps", "60", "--rate", "0.01"]
    assert run_train(tiny_target, recording, tmp_path, *SIZES, *more).exit_code == 0
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    losses = [float(line.split(",")[column]) for line in lines[1:]]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert (tmp_path / "curve.png").stat().st_size > 0


def test_nan_keeps_the_checkpoint(plain_run: Path, tiny_target: Path, recording: Path,
                                  tmp_path: Path) -> None:  # fmt: skip
    """A loss that is not a number ends with one sentence and leaves the checkpoint as it was."""
    run = shutil.copytree(plain_run, tmp_path / "run")
    state = torch.load(run / "student.pt", weights_only=False)
    state["student"]["norm.weight"][:] = float("nan")
    torch.save(state, run / "student.pt")
    before = (run / "student.pt").read_bytes()
    result = run_train(tiny_target, recording, run, *SIZES, "--steps", "9")
    assert result.exit_code == 1
    assert "the loss is not a number at step 6" in result.output
    assert (run / "student.pt").read_bytes() == before


def test_other_architecture_is_refused(tmp_path: Path) -> None:
    """A target that is not llama says so."""
    path = write_target(tmp_path / "other.gguf", "gpt2")
    with pytest.raises(TrainingError, match="has architecture gpt2"):
        gguf_io.Source(path)


def test_draft_of_another_vocabulary_is_refused(
    plain_run: Path, tiny_target: Path, recording: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Scoring a draft against a target with other tokens ends before any figure."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "f32")
    real = gguf_io.Source.field
    monkeypatch.setattr(
        evaluate.Source,
        "field",
        lambda self, name, default=None: (
            ["other"]
            if self.path == tiny_target and name.endswith("tokens")
            else real(self, name, default)
        ),
    )
    with pytest.raises(TrainingError, match="has another vocabulary"):
        evaluate.Replay(path, tiny_target, 1)


def test_tokenizer_and_template_are_the_targets(
    plain_run: Path, tiny_target: Path, recording: Path, tmp_path: Path
) -> None:
    """Every tokenizer field of the target is in the draft's file, unchanged."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "q4_0")
    target, draft = gguf_io.Source(tiny_target), gguf_io.Source(path)
    for key in target.reader.fields:
        if key.startswith("tokenizer."):
            assert draft.field(key) == target.field(key), key


def test_sidecar_names_both_files(
    coupled_run: Path, tiny_target: Path, recording: Path, tmp_path: Path
) -> None:
    """The hashes are those of the two files, and the norms' digest ignores quantisation."""
    path = exported(coupled_run, tiny_target, recording, tmp_path / "c.gguf", "q4_0")
    side = sidecar.load(path.with_suffix(".npz"))
    gguf_io.quantise(tiny_target, tmp_path / "q8.gguf", "q8_0")
    assert side.draft_sha256 == sidecar.file_sha256(path)
    assert side.target_sha256 == sidecar.file_sha256(tiny_target)
    assert side.target_norms == sidecar.norms_digest(gguf_io.Source(tmp_path / "q8.gguf"))


def test_a_broken_sidecar_is_one_sentence(tmp_path: Path) -> None:
    """Bytes that are no .npz are named."""
    (tmp_path / "c.npz").write_bytes(b"PK nothing")
    with pytest.raises(TrainingError, match="is not a sidecar"):
        sidecar.load(tmp_path / "c.npz")


def test_evaluate_prints_every_drafter(
    plain_run: Path, tiny_target: Path, recording: Path, tmp_path: Path
) -> None:
    """The command records answers itself and scores the draft beside both rivals."""
    path = exported(plain_run, tiny_target, recording, tmp_path / "d.gguf", "q8_0")
    bench = tmp_path / "bench.jsonl"
    lines = [f'{{"category": "qa", "turns": ["what is {i}"]}}' for i in range(4)]
    bench.write_text("\n".join(lines))
    options = {"target": tiny_target, "bench": bench, "answers": tmp_path / "answers"}
    options |= {"draft": path, "text": recording, "every": 2, "threads": 1}
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    result = CliRunner().invoke(evaluate.main, arguments)
    assert result.exit_code == 0, result.output
    for name in ("lookup", "n-grams", "d"):
        assert name in result.output
