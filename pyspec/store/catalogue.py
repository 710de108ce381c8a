"""Chat models that people run, by short names such as qwen3:4b, and a search for them here and on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pyspec.errors import ModelError
from pyspec.store.sources import ChatModel, hub_errors, hub_library, load_manifest

MAX_FOUND = 10
"""Repositories of the hub that a search lists."""

_TIMEOUT_S = 10.0


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


def search_hub(words: Sequence[str]) -> list[dict[str, Any]]:
    """Ask the hub for repositories with GGUF files that have these words, the most downloaded first. Raises FetchError."""
    with hub_errors("a list of models"):
        hub_library()
        utils, constants = (
            import_module(f"huggingface_hub.{name}") for name in ("utils", "constants")
        )
        # not by its own list, which tries for half a minute where there is no network
        wanted = {
            "search": " ".join(words),
            "filter": "gguf",
            "sort": "downloads",
            "limit": MAX_FOUND,
        }
        response = utils.get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params=wanted, headers=utils.build_hf_headers(), timeout=_TIMEOUT_S,
        )  # fmt: skip
        response.raise_for_status()
        found = response.json()
    known = [each for each in found if isinstance(each, dict) and isinstance(each.get("id"), str)]
    return [{"model": each["id"], "downloads": each.get("downloads") or 0} for each in known]
