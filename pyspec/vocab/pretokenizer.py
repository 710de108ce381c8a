"""How llama.cpp splits a text into words before tokenizing them, and how much stack and time that can take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import llama_cpp

from pyspec.errors import InputError

_BASE_STACK = 1 << 20
_STACK_A_BYTE = 768
"""About twice what llama.cpp takes per character when built with GCC: 330 bytes."""

SHALLOW = 1024
"""Length of a run for which any thread has enough stack, bytes."""

MAX_STACK = 1 << 30
MAX_STEPS = 20_000_000
"""Limit for a search that is quadratic in a run's length: some seconds."""

_SPACES = rb"(?:[ \t\v\f]|\xe3\x80\x80|\xc2[\x85\xa0]|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe1\x9a\x80)"
_QUADRATIC: Mapping[str, re.Pattern[bytes]] = {
    "deepseek-llm": re.compile(_SPACES + rb"{16,}"),  # \s+$ is tried from each of them
    "superbpe": re.compile(rb"[0-9]{16,}"),  # and so is (?=(\d{3})+(?!\d))
}
"""Runs that take time quadratic in their length, by the name of the expressions that split text into words."""

_BEYOND = re.compile(rb"(?:\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])[\x80-\xbf]{2}")
"""What looks like UTF-8 for a code point above U+10FFFF."""

_LOSES = frozenset(["whitespace", "gemma4", "sarvam-moe", "granite-embed-multi-311m"])
"""Expressions after which llama.cpp looks up characters unchanged, and drops those that are no token."""

_PARAGRAPH = re.compile(rb"\n(?=[0-9A-Za-z])")
"""A position that no match of llama.cpp's word expressions spans."""


class Pretokenizer:
    """What the regular expressions by which llama.cpp splits a text into words demand of it.

    Without a splitter of its own, llama.cpp uses std::regex, which recurses for each character of a match. pre: the name of
    the expressions, from the file's `tokenizer.ggml.pre`.
    """

    def __init__(self, vocab: Any, pre: str) -> None:
        kind = llama_cpp.llama_vocab_type(vocab)
        self._recurses = kind == llama_cpp.LLAMA_VOCAB_TYPE_BPE
        self._decodes = kind not in (
            llama_cpp.LLAMA_VOCAB_TYPE_SPM,
            llama_cpp.LLAMA_VOCAB_TYPE_RWKV,
        )
        self._pre = pre
        kinds = (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE)
        self.keeps_all = kind in kinds and pre not in _LOSES
        """Whether everything but white space becomes tokens. Other kinds drop unknown text, or make it one token."""

    def mend(self, text: bytes) -> bytes:
        """Replace bytes for which llama.cpp would end the process, in the way that it replaces other invalid bytes."""
        if self._decodes and not text.isascii():
            text = _BEYOND.sub("\ufffd".encode(), text)
        # white space is no word there, and two spaces in a row fail an assertion
        if self._pre == "whitespace":
            text = re.sub(r"\s+", " ", text.decode("utf-8", "replace")).encode()
        return text

    def stack(self, text: bytes) -> int:
        """Return the stack that a text needs in bytes, 0 if any thread has enough. Raises InputError if it is too much."""
        if not self._recurses or len(text) <= SHALLOW:
            return 0
        self._check_steps(text)
        longest = max(map(len, _PARAGRAPH.split(text)))
        if longest <= SHALLOW:
            return 0
        stack = _BASE_STACK + _STACK_A_BYTE * longest
        if stack > MAX_STACK:
            most = (MAX_STACK - _BASE_STACK) // _STACK_A_BYTE
            raise InputError(
                f"the text has a paragraph of {longest} bytes; this model's tokenizer takes {most}",
                "break it into lines",
            )
        return stack

    def _check_steps(self, text: bytes) -> None:
        slow = _QUADRATIC.get(self._pre)
        runs = [len(run[0]) for run in slow.finditer(text)] if slow else []
        if sum(n * n for n in runs) > MAX_STEPS:
            raise InputError(
                f"this model's tokenizer ({self._pre}) takes minutes for runs of {max(runs)} spaces or digits",
                "shorten them",
            )
