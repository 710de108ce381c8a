"""The chat templates of a model, the choice among them, and the variables that all of them know."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspec.errors import OptionError
from pyspec.machine.files import read_named

KEY = "tokenizer.chat_template"
NONE = "none"
DEFAULT, TOOL_USE = "default", "tool_use"

PLAIN = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}"
    "{%- elif message.role == 'user' -%}{{ 'User: ' + message.content + '\n' }}"
    "{%- elif message.role == 'assistant' -%}{{ 'Assistant: ' + message.content | trim + '\n' }}"
    "{%- else -%}{{ raise_exception('a ' + message.role + ' turn has no place here') }}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"
)
"""For models without a template: a dialogue in plain text."""

PLAIN_STOP = ("\nUser:",)
"""Ends an answer under the plain template, where the model would go on to write the user's turn."""

MAX_BYTES = 4 << 20
"""Largest file of a template; the longest template has fewer characters."""

_HEADER = 32 << 20
"""Bytes within which a file's header ends, for all but the largest vocabularies."""

_SPECIAL = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
"""Template variables, and the names of their token ids in GGUF keys."""


def brings_template(path: Path) -> bool:
    """Whether a model file seems to have a chat template. Only the beginning is searched: header and vocabulary are there."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(KEY.encode(), 0, _HEADER) >= 0
    except (OSError, ValueError):
        return False


def templates_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a file's templates by name; the unnamed one is `default` and comes first."""
    named = {
        key.removeprefix(f"{KEY}."): text
        for key, text in metadata.items()
        if key.startswith(f"{KEY}.")
    }
    return {DEFAULT: metadata[KEY], **named} if KEY in metadata else named


def choose(found: Mapping[str, str], choice: str | None) -> tuple[dict[str, str], str]:
    """Return the templates in force and their name. Raises OptionError if `choice` is neither a template's name nor a file."""
    if choice == NONE or (choice is None and not found):
        return {NONE: PLAIN}, NONE
    if choice is None:
        return dict(found), next(iter(found))
    if choice in found:
        return {choice: found[choice]}, choice
    try:
        return {choice: read_named(Path(choice), MAX_BYTES).decode()}, choice
    except (OSError, UnicodeError, ValueError) as error:
        names = ", ".join([*found, NONE])
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise OptionError(
            f"there is no chat template {choice[:80]!r}: {reason}",
            f"name a file, or one of: {names}",
        ) from None


def variables_of(llm: Any) -> dict[str, str]:
    """Return the texts of special tokens by the names that templates use."""
    found, text = {}, llm._model.token_get_text
    for name, key in _SPECIAL.items():
        id_ = llm.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if id_ is not None and 0 <= int(id_) < llm.n_vocab():
            found[name] = text(int(id_))
    for name, token in (("bos_token", llm.token_bos()), ("eos_token", llm.token_eos())):
        found.setdefault(name, text(token) if token >= 0 else "")
    return found
