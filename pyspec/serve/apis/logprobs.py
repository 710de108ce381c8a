"""Log-probabilities of an answer's tokens, in the formats of OpenAI's two kinds of completion."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

from pyspec.requests.records import CHAT
from pyspec.text.parts import TokenLogprobs
from pyspec.text.result import Likely, chat_logprobs


class LogprobWriter:
    """Writes the log-probabilities of one answer, all at once or in parts.

    form: of the completion, chat or text. piece: returns a token's bytes.
    """

    def __init__(self, form: str, piece: Callable[[int], bytes]) -> None:
        self._form, self._piece = form, piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._written = 0

    def write(self, likely: Likely) -> dict[str, Any]:
        """The next tokens' `logprobs` of a choice."""
        if self._form == CHAT:
            return {"content": chat_logprobs(self._piece, likely)}
        return {
            "tokens": [self._word(token.id) for token, _ in likely],
            "token_logprobs": [at and at.value for _, at in likely],
            "top_logprobs": [at and self._by_word(at) for _, at in likely],
            "text_offset": [self._offset(token.id) for token, _ in likely],
        }

    def _offset(self, token: int) -> int:
        """The index of a token's first character in the text, even where an earlier token began that character."""
        at = self._written
        self._written += len(self._decoder.decode(self._piece(token)))
        return at

    def _by_word(self, at: TokenLogprobs) -> dict[str, float]:
        """Log-probabilities by text. Of two tokens with the same text, the likelier counts."""
        found: dict[str, float] = {}
        for token, value in at.top:
            word = self._word(token)
            found[word] = max(value, found.get(word, value))
        return found

    def _word(self, token: int) -> str:
        """A token's text, or its bytes in OpenAI's notation if they are not UTF-8."""
        data = self._piece(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
