"""The table of sampling's numbers: declared once, they are at every interface."""

import inspect
import json
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from helpers import running, tiny
from helpers.programs import pulled
from llama_cpp import Llama

from pyspec.chat.talk import ChatSettings, number_settings
from pyspec.cli.command import command
from pyspec.cli.options import (
    DraftOptions,
    EngineOptions,
    KeptOptions,
    SamplerOptions,
    SystemOptions,
    number_options,
)
from pyspec.cli.serve import Loader, ServedModels, ServerOptions
from pyspec.llama.calls import SharedOptions
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.records import RequestFields, number_fields
from pyspec.sampling.options import (
    NUMBERS,
    OFFERED,
    Range,
    SamplerNumbers,
    Sampling,
    check_ranges,
    number,
    numbers,
    suggested_by,
)

CALLS = ("create_completion", "create_chat_completion", "generate")


@dataclass(frozen=True)
class More(SamplerNumbers):
    """With one number more."""

    knob: float = number(0.25, Range(0.0, 1.0, False, "0 to 1"), "turns the knob", usual=(0.1, 1))


def test_a_number_is_added_in_one_place():
    assert numbers(More)[-1].name == "knob"
    made: dict[str, Any] = {name: own for name, _, own in number_options(More)}
    assert made["knob"].metadata["names"] == ("--knob",)
    settings = {name: own for name, _, own in number_settings(More)}
    assert settings["knob"].metadata["kind"].convert("0.5", None, None) == 0.5
    with pytest.raises(click.BadParameter):
        settings["knob"].metadata["kind"].convert("0", None, None)
    body = msgspec.defstruct("body", number_fields(More), kw_only=True)
    assert msgspec.json.decode(b'{"knob": 0.5}', type=body).knob == 0.5


def test_llm_has_a_number_that_is_added():
    pytest.importorskip("llm", reason="the extra `llm` is not installed")
    from pyspec.llm_plugin import SpeculativeModel, pydantic_numbers

    assert pydantic_numbers(More)["knob"][1].description == "turns the knob"
    known = SpeculativeModel.Options.model_fields
    assert {each.name: known[each.name].default for each in OFFERED} == {
        each.name: each.default for each in OFFERED
    }


@pytest.mark.parametrize("call", CALLS)
def test_a_call_has_every_number(call):
    """Signatures are written out for editors; names and defaults are the table's but for llama-cpp-python's own."""
    own = inspect.signature(getattr(SpeculativeLlama, call)).parameters
    plain = {"temperature": "temp"} if call == "generate" else {}
    given = {name: own[plain.get(name, name)].default for name in NUMBERS}
    bases = {"generate": {"temperature": 0.8}, "create_completion": {"temperature": 0.8}}
    expected = {name: each.default for name, each in NUMBERS.items()}
    expected |= bases.get(call, {"temperature": 0.2})
    assert given == expected
    assert set(NUMBERS) <= SharedOptions.__annotations__.keys()  # of the overloads


def test_everything_else_has_the_numbers_too():
    names = {each.name for each in OFFERED}
    assert names <= {each.name for each in fields(SamplerOptions)}
    assert names <= {each.name for each in fields(ChatSettings)}
    assert names <= set(RequestFields.__struct_fields__)
    assert set(NUMBERS) <= {each.name for each in fields(Sampling)}


def test_what_is_usual_is_allowed():
    for each in NUMBERS.values():
        low, high = each.usual
        assert each.allowed.low <= low <= each.default <= high <= each.allowed.high
        check_ranges({each.name: low, "beside": object()})


def test_defaults_are_those_of_llama_cpp_python():
    theirs = inspect.signature(Llama.create_completion).parameters
    shared = {name: each.default for name, each in NUMBERS.items() if name in theirs}
    assert len(shared) >= 11
    assert shared == {name: theirs[name].default for name in shared}


def test_an_option_that_is_not_given_is_left_to_the_model():
    @command()
    def asked(sampler: SamplerOptions):  # the command reads the type
        made = sampler.sampling(1, {"top_k": 7})
        print(made.top_k, made.min_p, made.typical_p)  # noqa: T201

    found = CliRunner().invoke(asked, ["--typical-p", "0.5"])
    assert found.output.split() == ["7", "0.05", "0.5"]


# -- what a model suggests of its sampling, and where that holds -------------------------------------------------------

FILE: dict[str, Any] = {"temp": 0.5, "top_k": 7, "penalty_repeat": 1.25}
SAID = "sampling as the model suggests: --temp 0.5 --top-k 7 --repeat-penalty 1.25"
COMMON = ["--trust-model", "-t", "1", "--draft", "none", "--no-stats"]


@pytest.fixture(scope="module")
def suggesting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suggesting")
    return tiny.write(folder / "suggesting.gguf", tokens=tiny.ASCII, sampling=FILE)


def test_the_file_says_it_by_llama_cpps_keys(suggesting):
    values = {"temperature": 0.5, "top_k": 7, "repeat_penalty": 1.25}
    assert suggested_by(suggesting) == values


@pytest.mark.parametrize(("name", "value"), [("temp", -1.0), ("top_k", "many"), ("top_p", 7.0)])
def test_what_is_no_value_of_its_option_is_left_out(tmp_path, name, value):
    path = tiny.write(tmp_path / "x.gguf", sampling={"min_p": 0.5, name: value, "mirostat": 2})
    assert suggested_by(path) == {"min_p": 0.5}


def test_ollamas_parameters_come_before_the_files(tmp_path, suggesting):
    chat = {"temperature": 1, "stop": ["x"], "num_ctx": 9}
    for name, given in (("chat", chat), ("code", {"temperature": 0})):
        layers = {"model": suggesting.read_bytes(), "params": json.dumps(given).encode()}
        blob = pulled(tmp_path, f"{name}:latest", **layers)
    assert suggested_by(blob, "chat")["temperature"] == 1
    assert suggested_by(blob, "code:latest")["temperature"] == 0
    assert suggested_by(blob, "code")["top_k"] == 7


def test_generate_follows_it_and_says_so(suggesting):
    run = partial(running.run, "generate", "x", "-m", suggesting, "-n", "0", *COMMON)
    assert run().stderr == f"{SAID}\n"
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
    assert told.count(SAID) == 1
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
    assert f"suggests     {SAID}" in running.run("models", "info", suggesting).stdout
