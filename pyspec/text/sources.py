"""Which chat templates a model has, which one is in force, and the words that all of them know."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspec.errors import OptionError

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
"""For models that bring no template: a dialogue in plain words."""

PLAIN_STOP = ("\nUser:",)
"""Where an answer in plain words ends, since the model would go on as the user."""

_HEADER = 32 << 20
"""Bytes of a file in which its header ends, for all but the largest vocabularies."""

_SPECIAL = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
"""Variables of templates, and the GGUF keys of their ids."""


def brings_template(path: Path) -> bool:
    """Whether a model file seems to have a chat template, by a look at its beginning; header and vocabulary come first."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(KEY.encode(), 0, _HEADER) >= 0
    except (OSError, ValueError):
        return False


def templates_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """The templates that a file brings, by name; the one without a name is `default` and comes first."""
    named = {
        key.removeprefix(f"{KEY}."): text
        for key, text in metadata.items()
        if key.startswith(f"{KEY}.")
    }
    return {DEFAULT: metadata[KEY], **named} if KEY in metadata else named


def choose(found: Mapping[str, str], choice: str | None) -> tuple[dict[str, str], str]:
    """The templates in force, and what they are called. Raises OptionError for a name that is neither one nor a file."""
    if choice == NONE or (choice is None and not found):
        return {NONE: PLAIN}, NONE
    if choice is None:
        return dict(found), next(iter(found))
    if choice in found:
        return {choice: found[choice]}, choice
    try:
        return {choice: Path(choice).read_text(encoding="utf-8")}, choice
    except (OSError, UnicodeError, ValueError) as error:
        names = ", ".join([*found, NONE])
        raise OptionError(
            f"there is no chat template {choice[:80]!r}: {type(error).__name__}",
            f"name a file, or one of: {names}",
        ) from None


def variables_of(llm: Any) -> dict[str, str]:
    """Texts of special tokens, by the names that templates know."""
    found, text = {}, llm._model.token_get_text
    for name, key in _SPECIAL.items():
        given = llm.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if given is not None and 0 <= int(given) < llm.n_vocab():
            found[name] = text(int(given))
    for name, token in (("bos_token", llm.token_bos()), ("eos_token", llm.token_eos())):
        found.setdefault(name, text(token) if token >= 0 else "")
    return found
