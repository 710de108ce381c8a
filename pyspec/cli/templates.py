"""`pyspec models info NAME --template`: the chat templates of a model file, and what they make of three turns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspec.cli.command import tell
from pyspec.display import safe
from pyspec.errors import PyspecError
from pyspec.text.sources import KEY, templates_of

_TURNS = (
    {"role": "user", "content": "What is the sea?"},
    {"role": "assistant", "content": "Salt water."},
    {"role": "user", "content": "And a lake?"},
)


def in_ascii(text: str, limit: int = 100) -> str:
    """`text` in at most `limit` printable ASCII characters; nothing in it can steer a terminal."""
    shown = text[: limit + 1].encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def show_beginning(metadata: Mapping[str, Any]) -> None:
    """The template in a few lines, only shown: a template from a file is a program."""
    template = metadata.get(KEY)
    if isinstance(template, str):
        tell(
            f"chat template ({len(template)} characters, escaped, not rendered; --template shows it)"
        )
        tell(f"  {in_ascii(template, 2048)}")


def show_templates(path: Path) -> None:
    """Each template as it is, what the one in force makes of three turns, and how many tokens that is."""
    from pyspec.cli.engine_options import hush_llama  # noqa: PLC0415 - loads llama.cpp
    from pyspec.target import TargetLlama  # noqa: PLC0415 - as above

    hush_llama(verbose=False)
    model = TargetLlama(str(path), vocab_only=True, verbose=False)
    try:
        for name, source in templates_of(model.metadata).items():
            tell(f"chat template {safe(name)}:\n{safe(source)}\n")
        if model.template.is_plain:
            tell("no chat template: plain words\n")
        try:
            text, tokens = model.template.render(_TURNS), model.template.prompt(_TURNS)
        except PyspecError as error:
            tell(f"three turns: {safe(str(error))}")
        else:
            tell(f"three turns, {len(tokens)} tokens:\n{safe(text)}")
    finally:
        model.close()
