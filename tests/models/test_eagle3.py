"""An EAGLE-3 head from a recording to a GGUF, and llama.cpp's opinion of it."""

import ctypes
import json

import numpy as np
import pytest
from click.testing import CliRunner

from pyspec.errors import TrainingError

torch = pytest.importorskip("torch", reason="the recipe needs the extra [train]")

import llama_cpp as lc  # noqa: E402
from llama_cpp import llama_cpp_ext as ext  # noqa: E402
from rich.progress import Progress  # noqa: E402

from models.recipe import eagle3, evaluate, export, gguf_io, train, trainer  # noqa: E402
from models.recipe.rows import Corpus, Recording  # noqa: E402
from models.recipe.trainer import TrainingPlan  # noqa: E402

SIZES = {"width": 64, "layers": 1, "heads": 4, "kv_heads": 4, "head": 16, "ff": 192}
VOCAB, DRAFT_VOCAB = 320, 64


def trained(target, recording, out, stops, steps=6):
    """A head after `steps` steps; the run is interrupted at each of `stops` and taken up again."""
    for stop in stops:
        plan = trainer.TrainingPlan(steps=steps, tokens=128, warmup=6, rollout=3)
        corpus = Corpus([recording], 448)
        run = train.prepare(
            target, corpus, train.StudentOptions(SIZES, draft_vocab=DRAFT_VOCAB), plan, out
        )
        run.stop_at = stop
        run.run(Progress(disable=True))
    return out / "student.pt"


@pytest.fixture(scope="module")
def checkpoint(tiny_target, recording, tmp_path_factory):
    return trained(tiny_target, recording, tmp_path_factory.mktemp("eagle"), [6])


@pytest.fixture(scope="module")
def head(checkpoint, tiny_target):
    return export.load_eagle3(checkpoint, gguf_io.Source(tiny_target))


class Llama:
    """The target and the head in llama.cpp, through the calls that its own server uses."""

    def __init__(self, target, draft):
        params = lc.llama_model_default_params()
        self.models = [
            lc.llama_model_load_from_file(str(p).encode(), params) for p in (target, draft)
        ]
        options = lc.llama_context_default_params()
        options.n_ctx, options.n_threads, options.n_threads_batch = 256, 1, 1
        self.target = lc.llama_init_from_model(self.models[0], options)
        options.ctx_other = self.target
        self.draft = lc.llama_init_from_model(self.models[1], options)
        ext.llama_set_embeddings_nextn(self.draft, True, True)

    def close(self):
        for context in (self.draft, self.target):
            lc.llama_free(context)
        for model in self.models:
            lc.llama_model_free(model)

    def fuse(self, features):
        batch = batch_of(features)
        assert lc.llama_encode(self.draft, batch) == 0
        found = ext.llama_get_embeddings_nextn(self.draft)
        return np.ctypeslib.as_array(found, shape=(len(features), SIZES["width"])).copy()

    def logits(self, tokens, g):
        """Logits [rows, target's vocabulary] of pairs of a token and a state."""
        batch = batch_of(g)
        ids = (lc.llama_token * len(tokens))(*tokens.tolist())
        batch.token = ctypes.cast(ids, type(batch.token))
        assert lc.llama_decode(self.draft, batch) == 0
        shape = (len(tokens), VOCAB)
        return np.ctypeslib.as_array(lc.llama_get_logits(self.draft), shape=shape).copy()


def batch_of(vectors):
    batch = lc.llama_batch_init(len(vectors), vectors.shape[1], 1)
    batch.n_tokens = len(vectors)
    for i in range(len(vectors)):
        batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = i, 1, 0, 1
    data = np.ascontiguousarray(vectors, np.float32)
    ctypes.memmove(batch.embd, data.ctypes.data, data.nbytes)
    return batch


@pytest.mark.parametrize(("kind", "tolerance"), [("f32", 0.01), ("q8_0", 0.05), ("q4_0", 0.08)])
def test_llama_computes_what_torch_does(
    checkpoint, tiny_target, recording, tmp_path, kind, tolerance
):
    """States fuse, and pairs decode, to torch's values; ids outside the draft vocabulary are -inf."""
    path = tmp_path / "e.gguf"
    export.export(checkpoint, tiny_target, [recording], path, kind, "tiny")
    own = eagle3.read_head(gguf_io.Source(path, "eagle3"), gguf_io.Source(tiny_target))
    rows = Recording(recording).sequence(1)
    features = rows["features"].astype(np.float32)
    llama = Llama(tiny_target, path)
    g = llama.fuse(features.reshape(len(rows), -1))[:-1]
    logits = llama.logits(rows["token"][1:], g)
    llama.close()
    with torch.no_grad():
        tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
        wanted_g = own.fuse(torch.from_numpy(features))[:-1].numpy()
        output = own.rollout(tokens, torch.from_numpy(features)[None], 1)[0][0]
        wanted = own.head(own.norm(output)).numpy()
    assert np.abs(g - wanted_g).max() / np.abs(wanted_g).max() < tolerance
    inside = own.d2t.numpy()
    assert np.abs(logits[:, inside] - wanted).max() / np.abs(wanted).max() < tolerance
    assert np.isneginf(np.delete(logits, inside, axis=1)).all()


def test_f32_file_holds_the_trained_weights(head, checkpoint, tiny_target, tmp_path):
    path = tmp_path / "e.gguf"
    export.export(checkpoint, tiny_target, [], path, "f32", "tiny")
    back = eagle3.read_head(gguf_io.Source(path, "eagle3"), gguf_io.Source(tiny_target))
    assert torch.equal(back.fused(), head.fused())
    for name, weight in head.state_dict().items():
        if name not in ("fc.weight", "sizes"):
            assert torch.equal(weight, back.state_dict()[name]), name


def test_rollout_is_drafting_step_by_step(head, recording):
    rows = Recording(recording).sequence(2)
    tokens = torch.from_numpy(rows["token"].astype(np.int64))[None]
    features = torch.from_numpy(rows["features"].astype(np.float32))[None]
    place = 6
    with torch.no_grad():
        wanted = head.rollout(tokens, features, 3)[2][0, place]
        g = head.fuse(features)[:, : place + 1].clone()
        for own in (place - 2, place - 1, place):
            found = head.layer(tokens[:, 1 : place + 2], g, [], None)
            if own < place:
                g[:, own + 1] = found[:, own]
    torch.testing.assert_close(found[0, place], wanted, atol=1e-4, rtol=1e-3)


def test_draft_vocabulary_is_what_the_target_says(recording):
    corpus = Corpus([recording], 448)
    found = eagle3.draft_vocabulary(corpus, DRAFT_VOCAB)
    rows = Recording(recording).rows
    said = np.bincount(rows["ids"][:, 0], minlength=VOCAB) + np.bincount(
        rows["next"], minlength=VOCAB
    )
    assert (np.diff(found) > 0).all()
    assert said[found].sum() == np.sort(said)[-DRAFT_VOCAB:].sum()
    silent = [i for i in range(VOCAB) if not said[i]]
    taken = [i for i in found if not said[i]]
    assert taken == silent[: len(taken)]


def test_the_loss_knows_the_whole_distribution(head, tiny_target, recording):
    rows = Recording(recording).sequence(3)
    lesson = eagle3.Eagle3Objective(head, TrainingPlan())
    found, _ = lesson._wanted(rows, torch.device("cpu"))
    source = gguf_io.Source(tiny_target)
    matrix = source.tensor(source.output_name)
    logits = torch.from_numpy(rows["state"].astype(np.float32) @ matrix.T)
    wanted = logits.softmax(-1)[:, head.d2t]
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=0.02)


def test_resume_gives_the_same(tiny_target, recording, tmp_path):
    one, two = (
        torch.load(trained(tiny_target, recording, tmp_path / n, s), weights_only=False)["student"]
        for n, s in (("one", [6]), ("two", [3, 6]))
    )
    assert set(one) == set(two)
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], msg=name)


def test_training_lowers_the_loss(tiny_target, recording, tmp_path):
    sizes = [part for k, v in SIZES.items() for part in (f"--{k.replace('_', '-')}", str(v))]
    more = ["--eagle3", "--draft-vocab", "64", "--steps", "40", "--rate", "0.005", "--tokens", "128"]  # fmt: skip
    paths = ["--target", str(tiny_target), "--data", str(recording), "--out", str(tmp_path)]
    result = CliRunner().invoke(train.main, [*paths, *sizes, *more, "--threads", "1"])
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss")
    losses = [float(line.split(",")[column]) for line in lines[1:]]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]
    assert (tmp_path / "curve.png").stat().st_size > 0


def test_recordings_without_layers_are_refused(tiny_target, recording, tmp_path):
    corpus = Corpus([recording], 448)
    corpus.recordings[0].meta = type(corpus.meta)("", 64, VOCAB, 16)
    shape = eagle3.Eagle3Shape(VOCAB, **SIZES, draft_vocab=8, target_layers=(0, 1, 2))
    with pytest.raises(TrainingError, match="--layers"):
        eagle3.make_head(gguf_io.Source(tiny_target), corpus, shape, np.arange(8), 1)


def test_a_window_hides_the_prompts_beginning(checkpoint, tiny_target, recording, tmp_path):
    path = tmp_path / "e.gguf"
    export.export(checkpoint, tiny_target, [recording], path, "f32", "tiny")
    rows, prompt = Recording(recording).sequence(2), 9
    whole, windowed = (evaluate.Replay(path, tiny_target, 2, window) for window in (0, 5))
    shortened, found = whole.guess(rows[prompt - 5 :], 5), windowed.guess(rows, prompt)
    assert found.tolist() == shortened.tolist() != whole.guess(rows, prompt).tolist()


def test_evaluate_scores_a_head(checkpoint, tiny_target, recording, tmp_path):
    path = tmp_path / "head.gguf"
    export.export(checkpoint, tiny_target, [recording], path, "q4_0", "tiny")
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"category": "qa", "turns": ["what is this"]}')
    options = {"target": tiny_target, "bench": bench, "answers": tmp_path / "answers"}
    options |= {"draft": path, "threads": 1, "json": tmp_path / "scores.json"}
    arguments = [part for key, value in options.items() for part in (f"--{key}", str(value))]
    result = CliRunner().invoke(evaluate.main, arguments)
    assert result.exit_code == 0, result.output
    assert Recording(tmp_path / "answers").meta.layers == (0, 1, 2)
    found = json.loads((tmp_path / "scores.json").read_text())
    assert {"lookup", "head"} <= found["drafters"].keys()
    lengths = {name: len(sha) for name, sha in found["files"].items()}
    assert lengths == {tiny_target.name: 64, "head.gguf": 64}
    assert "commit" in found
