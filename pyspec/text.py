"""Text and tokens: text from tokens as they come, a tokenizer that no text can end, and chat prompts as tokens.

Chat templates are programs, and a model file is somebody else's. So its template is only looked at for the marks of a few known
formats; the formats themselves are here, as data. Parts of the format are tokenised with special tokens, texts of users
without, so nobody's text becomes a control token.
"""

from __future__ import annotations

import codecs
import ctypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import llama_cpp
from llama_cpp.llama_tokenizer import LlamaTokenizer

from pyspec.errors import InputEncoding, InputError, OptionError

_PIECE_BYTES = 256


class TextAssembler:
    """Turns token bytes into text, without ever showing half a character or a stop string.

    piece: bytes of one token id. stop: strings that end the text; they are not part of it.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Iterable[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        if not all(self._stop):
            raise OptionError("a stop string is empty", "leave it out")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.done = False
        """Whether a stop string was met; further tokens are ignored."""

    def push(self, ids: Iterable[int]) -> str:
        """Text that these tokens make safe to show."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"".join(map(self._piece, ids)))
        return self._release(final=False)

    def finish(self) -> str:
        """The text still held back at the end."""
        if self.done:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        found = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            self.done = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = 0 if final else max((overlap(self._held, stop) for stop in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that a stop string begins with."""
    return next(
        (n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0
    )


def piece_reader(vocab: Any) -> Callable[[int], bytes]:
    """A function from token id to its bytes; control tokens have none. Answers are remembered.

    It raises InputError for an id that is no token: llama.cpp would end the process.
    """
    return _Pieces(vocab).__getitem__


class _Pieces(dict[int, bytes]):
    """Bytes by token id, read when they are first asked for; later they are found without a line of Python."""

    def __init__(self, vocab: Any) -> None:
        super().__init__()
        self._vocab = vocab
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)

    def __missing__(self, token: int) -> bytes:
        if not 0 <= token < self._n_vocab:
            raise InputError(
                f"{token} is no token", f"this model has tokens 0 to {self._n_vocab - 1}"
            )
        self[int(token)] = piece = _piece(self._vocab, int(token), special=False)
        return piece


def _piece(vocab: Any, token: int, special: bool) -> bytes:
    """Bytes of a token; of a control token with `special` alone."""
    buffer, room = ctypes.create_string_buffer(_PIECE_BYTES), _PIECE_BYTES
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, room, 0, special)
    if n < 0:
        buffer, room = ctypes.create_string_buffer(-n), -n
        n = llama_cpp.llama_token_to_piece(vocab, token, buffer, room, 0, special)
    return bytes(buffer.raw[:n])


class GuardedTokenizer(LlamaTokenizer):  # type: ignore[misc]  # llama_cpp is untyped
    """llama-cpp-python's tokenizer, with an InputError where llama.cpp would end the process.

    It does so for ids that are no tokens, and for characters that a vocabulary without byte tokens cannot spell.
    """

    def __init__(self, llama: Any) -> None:
        super().__init__(llama)
        self._vocab = llama._model.vocab
        self._piece = piece_reader(self._vocab)
        self._alphabet = Alphabet.of(self._vocab)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """See `llama_cpp.Llama.tokenize`. Raises InputError."""
        if self._alphabet is not None:
            self._alphabet.check(text, special)
        room = len(text) + 8
        tokens = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self._vocab, text, len(text), tokens, room, add_bos, special)
        if n < 0:
            tokens = (llama_cpp.llama_token * -n)()
            n = llama_cpp.llama_tokenize(self._vocab, text, len(text), tokens, -n, add_bos, special)
        if n < 0:
            raise InputError("the text cannot be turned into tokens", "make it shorter")
        return list(tokens[:n])

    def detokenize(
        self, tokens: list[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """See `llama_cpp.Llama.detokenize`. Raises InputError."""
        text = b"".join(map(self._special if special else self._piece, tokens))
        begins = len(tokens) > 0 and tokens[0] == llama_cpp.llama_vocab_bos(self._vocab)
        return text[1:] if begins and text[:1] == b" " else text

    def _special(self, token: int) -> bytes:
        self._piece(token)  # for its check
        return _piece(self._vocab, int(token), special=True)


class Alphabet:
    """What a vocabulary of the SentencePiece kind can spell where byte tokens are missing.

    llama.cpp spells a character that is no token by its bytes' tokens, and ends the process where there are none.
    """

    def __init__(self, words: set[bytes], parsed: list[bytes]) -> None:
        self._words = words
        self._parsed = re.compile(b"|".join(map(re.escape, parsed))) if parsed else None

    @classmethod
    def of(cls, vocab: Any) -> Alphabet | None:
        """None where every text can be spelled."""
        if llama_cpp.llama_vocab_type(vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return None
        n_vocab, text = llama_cpp.llama_vocab_n_tokens(vocab), llama_cpp.llama_vocab_get_text
        missing = {b"<0x%02X>" % byte for byte in range(256)}
        words: set[bytes] = set()
        for token in range(n_vocab):
            words.add(text(vocab, token))
            missing.discard(text(vocab, token))
            if not missing:  # they stand at the beginning, so this is soon
                return None
        special = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        attr = llama_cpp.llama_vocab_get_attr
        parsed = [text(vocab, token) for token in range(n_vocab) if attr(vocab, token) & special]
        return cls(words, sorted(filter(None, parsed), key=len, reverse=True))

    def check(self, text: bytes, special: bool) -> None:
        """Raise InputError for the first character that cannot be spelled."""
        if special and self._parsed is not None:
            text = self._parsed.sub(b"", text)
        try:
            characters = set(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputEncoding(f"the text is not UTF-8 at byte {error.start}", _OTHER) from None
        # llama.cpp puts a space before a text, unless the file says otherwise, which it does not show
        for char in sorted(characters | {" "} if characters else characters):
            if not self.spells(char):
                raise InputError(f"this model's vocabulary cannot spell {char!r}", _OTHER)

    def spells(self, char: str) -> bool:
        """Whether a character is a token, or has tokens for its bytes."""
        shown = ("\u2581" if char == " " else char).encode()
        return shown in self._words or all(
            b"<0x%02X>" % byte in self._words or bytes([byte]) in self._words for byte in shown
        )


_OTHER = "leave it out, or use a model with byte tokens"


# -- chat prompts ------------------------------------------------------------------------------------------------------


class Message(TypedDict, total=False):
    """One turn: role is system, user or assistant. `tokens`, where given, stands for the content as it was generated."""

    role: str
    content: str
    tokens: Sequence[int]


@dataclass(frozen=True)
class Format:
    """How a family writes turns.

    mark: what a model's own template contains if it is of this family. turn: text before and after a message, by role.
    Without a system turn, the system text is put in front of the first user's.
    """

    name: str
    mark: str
    turn: Mapping[str, tuple[str, str]]
    default_system: str = ""

    @property
    def has_system(self) -> bool:
        """Whether the family has turns of the role system."""
        return "system" in self.turn


def _uniform(before: str, after: str, roles: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {role: (before.replace("ROLE", name), after) for role, name in roles.items()}


_ALL = {"system": "system", "user": "user", "assistant": "assistant"}

FORMATS = (
    Format("chatml", "<|im_start|>", _uniform("<|im_start|>ROLE\n", "<|im_end|>\n", _ALL)),
    Format(
        "llama-3",
        "<|start_header_id|>",
        _uniform("<|start_header_id|>ROLE<|end_header_id|>\n\n", "<|eot_id|>", _ALL),
    ),
    Format(
        "gemma",
        "<start_of_turn>",
        _uniform(
            "<start_of_turn>ROLE\n", "<end_of_turn>\n", {"user": "user", "assistant": "model"}
        ),
    ),
    Format("phi-3", "<|end|>", _uniform("<|ROLE|>\n", "<|end|>\n", _ALL)),
    Format("zephyr", "<|assistant|>", _uniform("<|ROLE|>\n", "</s>\n", _ALL)),
    Format("mistral", "[INST]", {"user": ("[INST] ", " [/INST]"), "assistant": ("", "</s>")}),
)

PLAIN = Format("plain", "", {"user": ("User: ", "\n"), "assistant": ("Assistant:", "\n")})
"""For models that bring no template: a dialogue in plain words."""

_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}<]+)<\|im_end\|>")


def recognise(template: str | None) -> Format:
    """The format whose marks a model's own template carries; PLAIN if it carries none that is known."""
    for known in FORMATS:
        if template and known.mark in template:
            found = _DEFAULT_SYSTEM.search(template)
            default = found.group(1) if found and known.has_system else ""
            return replace(known, default_system=default)
    return PLAIN


class ChatTemplate:
    """Turns messages into the tokens of a prompt for one model."""

    def __init__(self, form: Format, tokenizer: Any, add_bos: bool) -> None:
        self.format = form
        self._tokenizer = tokenizer
        self._add_bos = add_bos

    @classmethod
    def of(cls, llm: Any) -> ChatTemplate:
        """The template for a `llama_cpp.Llama`, from what its model file says."""
        return cls(
            recognise(llm.metadata.get("tokenizer.chat_template")),
            llm,
            bool(llm._model.add_bos_token()),
        )

    def prompt(self, messages: Sequence[Message], answer: bool = True) -> list[int]:
        """Token ids of a conversation; with `answer`, open for the assistant's next turn.

        The format's default system text is used where the conversation has none of its own. Raises InputError for an
        unknown role.
        """
        tokens = self._tokens("", bos=True)
        for message in self._arranged(messages):
            tokens += self._turn(message)
        if answer:
            tokens += self._tokens(self.format.turn["assistant"][0])
        return tokens

    def bare(self, text: str) -> list[int]:
        """Token ids of a text without a turn around it; at least one."""
        return self._tokens(text, special=False, bos=True) or [self._tokenizer.token_bos()]

    def _arranged(self, messages: Sequence[Message]) -> list[Message]:
        turns = list(messages)
        has_system = bool(turns) and turns[0].get("role") == "system"
        if not has_system and self.format.default_system:
            return [Message(role="system", content=self.format.default_system), *turns]
        if has_system and not self.format.has_system and len(turns) > 1:
            joined = f"{turns[0].get('content', '')}\n\n{turns[1].get('content', '')}"
            return [Message(role="user", content=joined), *turns[2:]]
        return turns

    def _turn(self, message: Message) -> list[int]:
        role = message.get("role", "")
        if role not in self.format.turn:
            raise InputError(
                f"a {role or 'nameless'} turn has no place here",
                f"use {', '.join(self.format.turn)}",
            )
        before, after = (self._tokens(text) for text in self.format.turn[role])
        text = list(message.get("tokens", ()))
        if "tokens" not in message:
            text = self._tokens(message.get("content", ""), special=False)
        if text and after and text[-1] == after[0]:
            text.pop()  # the answer ended with the token that closes its turn
        return before + text + after

    def _tokens(self, text: str, *, special: bool = True, bos: bool = False) -> list[int]:
        """Of a part of the format, or with `special` False of somebody's text."""
        bos = bos and self._add_bos
        return list(self._tokenizer.tokenize(text.encode(), add_bos=bos, special=special))
