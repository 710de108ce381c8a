"""`pyspec models info NAME --template`: shows the chat templates of a model file and a rendering of three turns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspec.cli.command import tell
from pyspec.errors import PyspecError
from pyspec.screen.words import safe
from pyspec.text.sources import KEY, templates_of

_TURNS = (
    {"role": "user", "content": "What is the sea?"},
    {"role": "assistant", "content": "Salt water."},
    {"role": "user", "content": "And a lake?"},
)


def in_ascii(text: str, limit: int = 100) -> str:
    """Return `text` in at most `limit` printable ASCII characters, so that it cannot control a terminal."""
    shown = text[: limit + 1].encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def show_beginning(metadata: Mapping[str, Any]) -> None:
    """Show the beginning of the template without rendering it, since it is an untrusted program."""
    template = metadata.get(KEY)
    if isinstance(template, str):
        tell(
            f"chat template ({len(template)} characters, escaped, not rendered; --template shows it)"
        )
        tell(f"  {in_ascii(template, 2048)}")


def show_templates(path: Path) -> None:
    """Show each template, and how the one in force renders three turns, with the token count."""
    from pyspec.cli.engine_options import hush_llama  # noqa: PLC0415 - loads llama.cpp
    from pyspec.engine.target import TargetLlama  # noqa: PLC0415 - as above

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
