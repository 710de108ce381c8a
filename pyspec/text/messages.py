"""The messages of a conversation, as templates take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class Message(TypedDict, total=False):
    """One turn of a conversation, in OpenAI's form.

    Attributes:
        role: "system", "user", "assistant" or "tool".
        content: The text of the turn, or its parts.
        reasoning_content: The model's reasoning before the content.
        tokens: Ids of an answer as it was generated, in place of its content. Never pass ids from an untrusted source.
    """

    role: str
    content: str | list[dict[str, Any]]
    reasoning_content: str
    tokens: Sequence[int]
