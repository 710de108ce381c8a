"""The table of sampling's numbers: declared once, they are at every interface."""

import inspect
from dataclasses import dataclass, fields
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from llama_cpp import Llama

from pyspec.chat.settings import ChatSettings, number_settings
from pyspec.cli.command import command
from pyspec.cli.options import SamplerOptions, number_options
from pyspec.errors import OptionError
from pyspec.llama.calls import SharedOptions
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.records import RequestFields, number_fields
from pyspec.sampling.chain import Sampling
from pyspec.sampling.limits import Range
from pyspec.sampling.options import NUMBERS, OFFERED, SamplerNumbers, check_numbers, number, numbers

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
    assert settings["knob"].metadata["kind"].parse("0.5") == 0.5
    with pytest.raises(OptionError):
        settings["knob"].metadata["kind"].parse("0")
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
        check_numbers({each.name: low, "beside": object()})


def test_what_is_usual_is_less_than_what_is_allowed():
    usual = {each.name: each.usual for each in NUMBERS.values()}
    allowed = {each.name: (each.allowed.low, each.allowed.high) for each in NUMBERS.values()}
    assert dict(usual.items() - allowed.items()) == {
        "temperature": (0, 100), "top_k": (0, 2**31 - 1), "top_p": (1e-6, 1), "typical_p": (1e-6, 1),
        "repeat_penalty": (0.01, 100),
    }  # fmt: skip


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
