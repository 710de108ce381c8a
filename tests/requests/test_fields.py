"""A body that is no JSON is refused, whatever is wrong with it."""

import pytest

from pyspec.errors import InputError
from pyspec.requests.bodies import ChatBody, decoded

WHOLE = b'{"messages": [{"role": "user", "content": "say"}], "max_tokens": 4}'


@pytest.mark.parametrize(("data", "says"), [
    *((data, "is not JSON in UTF-8: ") for data in (
        b"", WHOLE[:20], WHOLE.replace(b"say", b"\xff"), WHOLE.replace(b"say", rb"\ud83d"),
        WHOLE.replace(b"4}", b"NaN}"), WHOLE.replace(b"4}", b"4,}"),
    )),
    (b'{"json_schema": {"a": ' + b"[" * 100_000, "is nested too deep"),
])  # fmt: skip
def test_what_is_not_json_is_refused(data, says):
    with pytest.raises(InputError, match=f"the body {says}"):
        decoded(ChatBody, data)


def test_a_byte_order_mark_is_taken():
    assert decoded(ChatBody, b"\xef\xbb\xbf" + WHOLE) == decoded(ChatBody, WHOLE)
