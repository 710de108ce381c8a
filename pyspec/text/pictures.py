"""Pictures in messages: taken out for the template, which writes a word in the place of each."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pyspec.errors import InputError

_KIND = "image_url"

MAX_PICTURES = 32
"""Most pictures of a conversation."""


def part_of(url: str) -> dict[str, Any]:
    """Return a picture as OpenAI's messages have it. url: a data URL."""
    return {"type": _KIND, _KIND: {"url": url}}


def data_url(data: bytes) -> str:
    """Return bytes as a data URL."""
    return base64_url(base64.b64encode(data).decode())


def base64_url(text: str) -> str:
    """Return base64 text as a data URL."""
    return f"data:application/octet-stream;base64,{text}"


def has_pictures(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a user's message holds a picture."""
    return any(_is_picture(part) for message in messages for part in _parts(message))


def taken_out(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], dict[str, bytes]]:
    """Return messages with a word in the place of each picture of a user, and the pictures by these words.

    Nobody can guess the words. Raises InputError for too many pictures, or one that is no data URL.
    """
    found: dict[str, bytes] = {}

    def text(part: Any) -> Any:
        if not _is_picture(part):
            return part
        if len(found) >= MAX_PICTURES:
            raise InputError(f"there are more than {MAX_PICTURES} pictures", "send fewer")
        word = f"picture{secrets.token_hex(12)}"
        found[word] = _data_of(part[_KIND])
        return {"type": "text", "text": word}

    turns: list[Mapping[str, Any]] = [
        {**message, "content": [text(part) for part in _parts(message)]}
        if any(map(_is_picture, _parts(message)))
        else message
        for message in messages
    ]
    return turns, found


def text_around(message: Mapping[str, Any]) -> str:
    """Return a message as text that is about as long as its prompt: instead of each picture, as much as one often takes."""
    if not any(map(_is_picture, _parts(message))):
        return str(message)
    return "".join("x" * _USUAL if _is_picture(part) else str(part) for part in _parts(message))


_USUAL = 3 << 10  # characters; about a thousand positions


def _parts(message: Any) -> list[Any]:
    """The parts of a user's message, if it has parts."""
    if not isinstance(message, Mapping) or message.get("role") != "user":
        return []
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_picture(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == _KIND


def _data_of(said: Any) -> bytes:
    """The bytes of a picture. said: a URL, or an object with one."""
    url = said.get("url") if isinstance(said, dict) else said
    if not isinstance(url, str) or not url.startswith("data:"):
        raise InputError(
            "a picture is not in the request: no addresses are fetched, and no files read",
            "send it as a data URL (data:image/png;base64,...)",
        )
    head, comma, body = url.partition(",")
    try:
        if not comma or not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(body, validate=True)
    except (ValueError, binascii.Error):
        raise InputError(
            "a picture's data URL is not base64", "send data:image/png;base64,..."
        ) from None
