"""How llama.cpp splits a text into words before it makes tokens of them, and what that may cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import llama_cpp

from pyspec.errors import InputError

_BASE_STACK = 1 << 20
_STACK_A_BYTE = 768
"""Twice what llama.cpp takes for a character as GCC builds it: 330 bytes."""

SHALLOW = 1024
"""Bytes of one kind that any thread has the stack for."""

MOST_STACK = 1 << 30
MOST_STEPS = 20_000_000
"""Of a search that is quadratic in a run's length: some seconds."""

_SPACES = rb"(?:[ \t\v\f]|\xe3\x80\x80|\xc2[\x85\xa0]|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe1\x9a\x80)"
_QUADRATIC: Mapping[str, re.Pattern[bytes]] = {
    "deepseek-llm": re.compile(_SPACES + rb"{16,}"),  # \s+$ is tried from each of them
    "superbpe": re.compile(rb"[0-9]{16,}"),  # and so is (?=(\d{3})+(?!\d))
}
"""Runs that take time quadratic in their length, by the name of the expressions that split a text into words."""

_BEYOND = re.compile(rb"(?:\xf4[\x90-\xbf]|[\xf5-\xf7][\x80-\xbf])[\x80-\xbf]{2}")
"""What looks like UTF-8 for a number above U+10FFFF."""

_LOSES = frozenset(["whitespace", "gemma4", "sarvam-moe", "granite-embed-multi-311m"])
"""Expressions behind which characters are looked up as they are, and left out where no token is found."""

_PARAGRAPH = re.compile(rb"\n(?=[0-9A-Za-z])")
"""A place that none of llama.cpp's expressions for words matches across."""


class WordSplitter:
    """What is to be known of the regular expressions by which llama.cpp splits a text into words.

    Where it has no splitter of its own it uses std::regex, which calls itself for each character of a match. pre: the name of
    the expressions, the file's `tokenizer.ggml.pre`.
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
        """Whether all that is no white space becomes tokens: others leave out, or make one token of, what they do not know."""

    def mend(self, text: bytes) -> bytes:
        """The text without what llama.cpp ends the process for; it stands for other damaged bytes in the same way itself."""
        if self._decodes and not text.isascii():
            text = _BEYOND.sub("\ufffd".encode(), text)
        if (
            self._pre == "whitespace"
        ):  # white space has no words there, and two spaces are an assertion
            text = re.sub(r"\s+", " ", text.decode("utf-8", "replace")).encode()
        return text

    def stack(self, text: bytes) -> int:
        """Bytes of stack that the text needs, 0 where any thread has enough. Raises InputError for one that needs too much."""
        if not self._recurses or len(text) <= SHALLOW:
            return 0
        self._check_steps(text)
        longest = max(map(len, _PARAGRAPH.split(text)))
        if longest <= SHALLOW:
            return 0
        stack = _BASE_STACK + _STACK_A_BYTE * longest
        if stack > MOST_STACK:
            most = (MOST_STACK - _BASE_STACK) // _STACK_A_BYTE
            raise InputError(
                f"the text has a paragraph of {longest} bytes; this model's tokenizer takes {most}",
                "break it into lines",
            )
        return stack

    def _check_steps(self, text: bytes) -> None:
        slow = _QUADRATIC.get(self._pre)
        runs = [len(run[0]) for run in slow.finditer(text)] if slow else []
        if sum(n * n for n in runs) > MOST_STEPS:
            raise InputError(
                f"this model's tokenizer ({self._pre}) takes minutes for runs of {max(runs)} spaces or digits",
                "shorten them",
            )
