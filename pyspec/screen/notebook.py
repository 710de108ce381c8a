"""How objects appear at a Python prompt and in a notebook: a sentence, and an answer as Markdown."""

from __future__ import annotations

from typing import Any

import numpy as np

from pyspec.screen.words import speed_sentence

_SHOWN = 60


class _PlainDict(dict[str, Any]):
    """A dict that is shown in its own way; programs, copies and `str` have it as a plain one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __str__(self) -> str:
        return dict.__repr__(self)


class SpeculationBlock(_PlainDict):
    """The `speculation` block of a result: a dict with a sentence about what drafts did. Copies are plain dicts."""

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

    def _repr_markdown_(self) -> str:
        block = self.get("speculation")
        note = f"\n\n*{block.sentence}*" if isinstance(block, SpeculationBlock) else ""
        return self._content + note


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
