"""What a model suggests of its sampling, and where that holds."""

import json
from functools import partial
from typing import Any

import msgspec
import pytest
from helpers import running, tiny
from helpers.programs import pulled

from pyspec.cli.options import (
    DraftOptions,
    EngineOptions,
    KeptOptions,
    SamplerOptions,
    SystemOptions,
)
from pyspec.cli.serve import Loader, ServedModels, ServerOptions
from pyspec.sampling.suggested import SuggestedSampling, suggested_by

FILE: dict[str, Any] = {"temp": 0.5, "top_k": 7, "penalty_repeat": 1.25}
COMMON = ["--trust-model", "-t", "1", "--draft", "none", "--no-stats"]


@pytest.fixture(scope="module")
def suggesting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suggesting")
    return tiny.write(folder / "suggesting.gguf", tokens=tiny.ASCII, sampling=FILE)


def of(tmp_path, **said):
    return suggested_by(tiny.write(tmp_path / "x.gguf", sampling=said))


def test_the_file_says_it_by_llama_cpps_keys(suggesting):
    values = {"temperature": 0.5, "top_k": 7, "repeat_penalty": 1.25}
    assert suggested_by(suggesting) == SuggestedSampling(values)


def test_what_the_user_sets_stays(suggesting):
    made = SamplerOptions(top_k=3).sampling(1, suggested_by(suggesting).values)
    assert (made.temperature, made.top_k, made.top_p) == (0.5, 3, 0.95)


@pytest.mark.parametrize(("name", "value"), [("temp", -1.0), ("top_k", "many"), ("top_p", 7.0)])
def test_what_is_no_value_of_its_option_is_named(tmp_path, name, value):
    found = of(tmp_path, min_p=0.5, **{name: value})
    ours = {"temp": "temperature"}.get(name, name)
    assert found == SuggestedSampling({"min_p": 0.5}, (ours,))
    assert found.sentence().endswith(f"its {ours} cannot be followed")


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"mirostat": 2}, ("mirostat",)), ({"mirostat": 0}, ()), ({"penalty_last_n": 256}, ("penalty_last_n",)),
        ({"sequence": "top_k;temperature"}, ("sequence",)),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_named(tmp_path, said, left):
    assert of(tmp_path, **said).left == left


def test_ollamas_parameters_come_before_the_files(tmp_path, suggesting):
    chat = {"temperature": 1, "stop": ["x"], "num_ctx": 9}
    for name, given in (("chat", chat), ("code", {"temperature": 0})):
        layers = {"model": suggesting.read_bytes(), "params": json.dumps(given).encode()}
        blob = pulled(tmp_path, f"{name}:latest", **layers)
    assert suggested_by(blob, "chat").values["temperature"] == 1
    assert suggested_by(blob, "code:latest").values["temperature"] == 0
    assert suggested_by(blob, "code").values["top_k"] == 7


def test_generate_follows_it_and_says_so(suggesting):
    run = partial(running.run, "generate", "x", "-m", suggesting, "-n", "0", *COMMON)
    assert (
        run().stderr
        == "sampling as the model suggests: --temp 0.5 --top-k 7 --repeat-penalty 1.25\n"
    )
    assert run("--temp", "0", "--top-k", "1", "--repeat-penalty", "1").stderr == ""


def test_batch_follows_it(suggesting, tmp_path):
    (tmp_path / "in.txt").write_text("x\n")
    model = tiny.write(tmp_path / "cold.gguf", tokens=tiny.ASCII, sampling={"temp": 0.0})
    out = tmp_path / "out.jsonl"
    done = running.run(
        "batch", tmp_path / "in.txt", "-o", out, "-m", model, "-n", "1", "-c", "64", *COMMON[:-1]
    )
    assert "sampling as the model suggests: --temp 0\n" in done.stderr
    assert "seed" not in msgspec.json.decode(out.read_bytes())["speculation"]


def test_a_chat_follows_it_and_another_model_ends_it(suggesting, tiny_ascii):
    lines = f"/set\n/set top_k 3\n/model {tiny_ascii}\n/set\n"
    done = running.run("chat", "--script", "-m", suggesting, *COMMON, stdin=lines.encode())
    told = [" ".join(line.split()) for line in done.stderr.splitlines() + done.stdout.splitlines()]
    assert (
        told.count("sampling as the model suggests: --temp 0.5 --top-k 7 --repeat-penalty 1.25")
        == 1
    )
    assert [line for line in told if line.startswith(("temperature ", "top_k ")) and "is" not in line] == [
        "temperature 0.5", "top_k 7", "temperature 0.8", "top_k 3",
    ]  # fmt: skip


def test_a_server_follows_it(suggesting):
    models = ServedModels(model=(str(suggesting),), draft="none", trust_model=True, ctx=64)
    options = ServerOptions(parallel=1), SystemOptions(), KeptOptions(), models, DraftOptions()
    batch, _ = Loader(*options, SamplerOptions(min_p=0.25), EngineOptions()).load(models.first)
    with batch:
        sampling = batch.settings.sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.5, 7, 0.25)


def test_models_info_shows_it(suggesting):
    assert (
        "suggests     sampling as the model suggests: --temp 0.5"
        in running.run("models", "info", suggesting).stdout
    )
