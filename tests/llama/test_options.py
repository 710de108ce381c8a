"""What may be asked of a call, by the same names at every door."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from pyspec.chat.settings import FIELDS
from pyspec.cli.sampler_options import SamplerOptions
from pyspec.llama.options import MORE_SAMPLERS
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.records import RequestFields

CALLS = ("create_completion", "create_chat_completion", "generate")
DOORS = {
    **{name: inspect.signature(getattr(SpeculativeLlama, name)).parameters for name in CALLS},
    "records and requests": RequestFields.__struct_fields__,
    "chat": FIELDS,
    "commands": [each.name for each in fields(SamplerOptions)],
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_every_sampler(door: str) -> None:
    """Under one name."""
    assert [name for name in MORE_SAMPLERS if name not in DOORS[door]] == []
    assert len(MORE_SAMPLERS) == 9


def test_llm_has_every_sampler() -> None:
    """And whose random numbers draw."""
    pytest.importorskip("llm", reason="the extra `llm` is not installed")
    from pyspec.llm_plugin import SpeculativeModel

    assert {*MORE_SAMPLERS, "sampling"} <= SpeculativeModel.Options.model_fields.keys()
