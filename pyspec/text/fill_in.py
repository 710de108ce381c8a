"""Prompts that ask for the text between two others, by the vocabulary's own tokens for that (`tokenizer.ggml.fim_*`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import llama_cpp

from pyspec.errors import InputError

_PROJECT = "project\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""What stands before another file's text where the vocabulary has no token for that, as in llama-server."""


class OtherFile(NamedTuple):
    """Another file that may help. name: empty if unknown."""

    name: str
    text: str


class FillIn:
    """Makes prompts for one model. llm: a `TargetLlama`. Raises InputError for a model that was not made for this."""

    def __init__(self, llm: Any) -> None:
        vocab = llm._model.vocab  # noqa: SLF001 - llama_cpp has no public way
        self._before, self._after, self._middle = (
            int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab))
            for name in ("pre", "suf", "mid")
        )
        self._project, self._file = (
            int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab)) for name in ("rep", "sep")
        )
        if min(self._before, self._after, self._middle) < 0:
            raise InputError(
                "this model has no tokens for filling in (tokenizer.ggml.fim_*)",
                "leave the suffix out, or use a model for code, such as Qwen2.5-Coder",
            )
        self._tokenizer = llm.tokenizer_
        adds = llama_cpp.llama_vocab_get_add_bos(vocab)
        self._bos = [int(llama_cpp.llama_vocab_bos(vocab))] if adds else []
        self._suffix_first = bool(getattr(llm, "spm_infill", False))

    def tokens(self, prefix: str, suffix: str) -> list[int]:
        """Return the prompt for the text between these."""
        return self._joined(self._text(prefix), self._text(suffix))

    def fitting(
        self, prefix: str, suffix: str, others: Sequence[OtherFile], room: int, name: str = ""
    ) -> list[int]:
        """Return such a prompt of at most so many tokens, with other files in front as far as there is room.

        What is farthest from the gap is left out; of prefix and suffix, the suffix keeps a quarter if both are long. name: of the
        file with the gap.
        """
        before, after = self._text(prefix), self._text(suffix)
        left = max(0, room - len(self._bos) - 3)
        n_after = min(len(after), max(left // 4, left - len(before)))
        n_before = min(len(before), left - n_after)
        front = self._others(others, name)
        n_front = min(len(front), left - n_after - n_before)
        kept = front[len(front) - n_front :]
        return self._joined(before[len(before) - n_before :], after[:n_after], kept)

    def _joined(self, before: list[int], after: list[int], front: Sequence[int] = ()) -> list[int]:
        first, second = [self._before, *before], [self._after, *after]
        if self._suffix_first:
            first, second = second, first
        return [*self._bos, *front, *first, *second, self._middle]

    def _others(self, others: Sequence[OtherFile], name: str) -> list[int]:
        if not others:
            return []
        marked = self._project >= 0 and self._file >= 0
        made = [self._project, *self._text(_PROJECT)] if marked else []
        for each in others:
            head = [self._file, *self._text(f"{each.name}\n")] if marked else self._text(_SNIPPET)
            made += [*head, *self._text(each.text)]
        return [*made, self._file, *self._text(f"{name or 'file'}\n")] if marked else made

    def _text(self, text: str) -> list[int]:
        """Tokens of what a user wrote: no control token is among them. Raises InputError."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not UTF-8 at character {error.start}") from None
        return list(self._tokenizer.tokenize(data, add_bos=False, special=False)) if data else []
