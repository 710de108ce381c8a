"""A body that is no JSON is refused, whatever is wrong with it."""

import pytest

from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody, decoded

WHOLE = b'{"messages": [{"role": "user", "content": "say"}], "max_tokens": 4}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[:20],
        WHOLE.replace(b"say", b"\xff"),
        WHOLE.replace(b"say", rb"\ud83d"),
        WHOLE.replace(b"4}", b"NaN}"),
        WHOLE.replace(b"4}", b"4,}"),
    ],
)
def test_what_is_not_json_is_refused(data):
    with pytest.raises(InputError, match="the body is not JSON in UTF-8: "):
        decoded(ChatBody, data)


def test_a_body_nested_too_deep_is_refused():
    with pytest.raises(InputError, match="nested too deep"):
        decoded(ChatBody, b'{"json_schema": {"a": ' + b"[" * 100_000)


def test_a_byte_order_mark_is_taken():
    assert decoded(ChatBody, b"\xef\xbb\xbf" + WHOLE) == decoded(ChatBody, WHOLE)
