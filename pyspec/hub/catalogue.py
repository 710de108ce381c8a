"""Chat models that people run, by short names such as qwen3:4b, and a search for them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspec.errors import ModelError
from pyspec.hub.sources import ChatModel, load_manifest


def chat_models() -> tuple[ChatModel, ...]:
    """Return the catalogue; empty if the manifest cannot be read."""
    try:
        return load_manifest().chat
    except ModelError:
        return ()


def find_chat(name: str) -> ChatModel | None:
    """Return the model of a short name, NAME or NAME:LABEL in any letters; without a label the first of that name."""
    wanted, _, label = name.casefold().removesuffix(":latest").partition(":")
    named = [each for each in chat_models() if each.name == wanted]
    return next((each for each in named if label in ("", each.label)), None)


def search(words: Sequence[str]) -> list[ChatModel]:
    """Return models of the catalogue that have all of these words, in its order; all of them without any word."""
    wanted = [word.casefold() for word in words]
    return [each for each in chat_models() if all(word in _searched_text(each) for word in wanted)]


def _searched_text(each: ChatModel) -> str:
    return f"{each.full} {each.model} {each.licence} {each.note}".casefold()
