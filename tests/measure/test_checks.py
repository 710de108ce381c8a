"""What a program can test in an answer."""

from __future__ import annotations

from typing import Any

import pytest

from pyspec.errors import InputError
from pyspec.measure.checks import check

HUMAN_EVAL = {
    "kind": "tests",
    "prompt": 'from typing import List\n\ndef add(a: int, b: int) -> int:\n    """Add."""\n',
    "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
    "entry": "add",
}


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ({"kind": "json"}, 'Here:\n```json\n{"a": 1}\n```', '{"a": 1'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '{"b": 1}'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '["a"]'),
        ({"kind": "list", "n": 2}, "Two:\n\n1. a\n2. b\n", "1. a\n2. b\n3. c"),
        ({"kind": "list", "n": 2}, "- a\n- b", "a\nb"),
        ({"kind": "copy", "text": "a b\nc"}, "Sure:\na b  \nc\n", "a  b\nc"),
        ({"kind": "number", "value": 1234}, "It is 2, so 1,234.", "1234 or 5"),
        ({"kind": "number", "value": -0.5}, "-0.5", "none"),
        ({"kind": "compiles"}, "```python\nx = 1\n```", "```python\nx = \n```"),
        ({"kind": "compiles"}, "x = 1", ""),
        (HUMAN_EVAL, "```python\ndef add(a, b):\n    return a + b\n```", "def add(a, b):\n    return 0"),
        (HUMAN_EVAL, "    return a + b", "    return a - b"),
    ],
)  # fmt: skip
def test_each_kind_tells_good_from_bad(what: dict[str, Any], good: str, bad: str) -> None:
    """One answer that passes and one that does not."""
    assert check(what, good) is True
    assert check(what, bad) is False


def test_an_unknown_kind_is_refused() -> None:
    """A typing error in a questions file is not a failed answer."""
    with pytest.raises(InputError, match="unknown check 'jsn'"):
        check({"kind": "jsn"}, "{}")
