"""How objects appear at a Python prompt and in a notebook: a sentence, and an answer's tokens in colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from weakref import ref

import numpy as np

from pyspec.screen.token_view import TokenPaint
from pyspec.screen.words import speed_sentence
from pyspec.text.tokens import Source, Token

_COLOURS = {"green": "color:#2e8b57", "bold yellow": "color:#b8860b;font-weight:bold", "": ""}
_LEGEND = (
    (Source.ACCEPTED, "drafted and right", "green"),
    (Source.RELAXED, "drafted and close", "bold yellow"),
)
_SHOWN = 60


class _PlainDict(dict[str, Any]):
    """A dict that is shown in its own way; programs, copies and `str` have it as a plain one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __str__(self) -> str:
        return dict.__repr__(self)


class SpeculationBlock(_PlainDict):
    """The `speculation` block of a result: a dict with a sentence about what drafts did.

    tokens: of the answer; model: the object that answered, for the tokens' text while it is open. Copies are plain dicts.
    """

    def __init__(
        self, block: Mapping[str, Any], tokens: Sequence[Token] = (), model: Any = None
    ) -> None:
        super().__init__(block)
        self._tokens = tuple(tokens)
        self._model = (lambda: None) if model is None else ref(model)

    @property
    def sentence(self) -> str:
        """How fast the answer came, compared with plain decoding."""
        timings = self.get("timings")
        return (
            speed_sentence(self, timings["tokens_per_second"]) if timings else "nothing was decoded"
        )

    def __repr__(self) -> str:
        counts = [f"{self[name]} {name}" for name in _COUNTS if name in self]
        return (
            f"<speculation: {'; '.join([self.sentence, *([', '.join(counts)] if counts else [])])}>"
        )

    def _repr_html_(self) -> str:
        return f"<div>{self._painted()}<small>{escape(self.sentence)}</small></div>"

    def _painted(self) -> str:
        """The tokens in the colours of their sources, and a legend; empty once the model is closed."""
        model = self._model()
        if model is None or not self._tokens or not model.is_open:
            return ""
        paint = TokenPaint(model.piece, colour=True)
        paint.take(self._tokens)
        text = b"".join(model.piece(token.id) for token in self._tokens).decode("utf-8", "replace")
        parts = [_span(part, style) for part, style in paint(text)]
        shown = '<pre style="white-space:pre-wrap">{}</pre>'.format("".join(parts))
        sources = {token.source for token in self._tokens}
        marks = [_span(words, style) for source, words, style in _LEGEND if source in sources]
        return shown + (f"<small>{', '.join(marks)}. </small>" if marks else "")


_COUNTS = ("drafted", "verified", "accepted", "relaxed")


class ResultView(_PlainDict):
    """A completion: still a dict, but it shows its text and a sentence at a prompt and in a notebook."""

    @property
    def _content(self) -> str:
        choice = self["choices"][0]
        message = choice.get("message") or {}
        return str(choice.get("text") or message.get("content") or "")

    def __repr__(self) -> str:
        text = self._content if len(self._content) <= _SHOWN else f"{self._content[:_SHOWN]}..."
        block = self.get("speculation")
        return f"<answer {text!r}; {block.sentence if isinstance(block, SpeculationBlock) else 'decoded plainly'}>"

    def _repr_html_(self) -> str:
        block = self.get("speculation")
        if isinstance(block, SpeculationBlock) and (html := block._painted()):  # noqa: SLF001 - of this module
            return f"<div>{html}<small>{escape(block.sentence)}</small></div>"
        return f'<pre style="white-space:pre-wrap">{escape(self._content)}</pre>'


def _span(text: str, style: str) -> str:
    shown = escape(text)
    return f'<span style="{_COLOURS[style]}">{shown}</span>' if style else shown


def shown_as(result: Any) -> Any:
    """Turn a completion into a `ResultView` that `json` can write; returns a stream unchanged."""
    if not isinstance(result, dict):
        return result
    return ResultView({**result, "choices": _plain(result["choices"])})


def _plain(value: Any) -> Any:
    """Return nested lists and dicts with numpy's numbers as Python's: llama-cpp-python leaves some in logprobs."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def model_line(model: Any) -> str:
    """One line about a loaded or closed model."""
    name = type(model).__name__
    if not model.is_open:
        return f"<{name}, closed>"
    file = str(model.model_path).replace("\\", "/").rpartition("/")[2]
    session = getattr(model, "_session", None)
    if session is None:  # loaded for embeddings or its vocabulary
        return f"<{name} {file}: decodes plainly>"
    parts = session.assembly
    companion = f", companion {parts.companion}" if parts.companion != "none" else ""
    rule = model.verification.name
    return f"<{name} {file}: context {model.n_ctx()}, draft {parts.draft}{companion}, {rule}>"
