"""What a chat by a running server asks of it."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.chat.remote import _sampled
from pyspec.sampling.chain import Sampling

CHANCE: dict[str, Any] = {"seed": 5, "chance": True}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (CHANCE, {}),
        ({"seed": 5}, {"seed": 5}),
        ({**CHANCE, "noise": "coupled"}, {"seed": 5, "sampling": "coupled"}),
    ],
)
def test_the_server_draws_as_is_faster_there_where_nobody_gave_a_seed(
    options: dict[str, Any], asked: dict[str, Any]
) -> None:
    """A seed of chance would be taken for the user's; servers before this one know no "auto"."""
    body = _sampled(Sampling(**options))
    assert {name: body[name] for name in ("seed", "sampling") if name in body} == asked
