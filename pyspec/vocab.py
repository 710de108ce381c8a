"""A tokenizer that raises errors where llama.cpp would end the process, and the bytes of tokens.

Its expressions split a text into words first; how much stack and time that can take is computed from the text. Long texts are
split here at the words that are single tokens, because llama.cpp's own search takes time squared in their number.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from time import monotonic
from typing import Any, TypeVar

import llama_cpp
from llama_cpp.llama_tokenizer import LlamaTokenizer

from pyspec._lib import address, check, ffi, lib
from pyspec.errors import EngineError, InputEncoding, InputError

PARSED = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
"""Attributes of words that are tokens only if the text is parsed for them."""
_ALWAYS = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_SPACE = " \t\n\v\f\r"

SHORT = 512  # in shorter texts, bytes, llama.cpp finds the words as fast by itself
_REPEATED = 32  # longest stretch between words that is tokenized only once, bytes
_MAX_KNOWN = 1 << 16

BUDGET_S = 10.0  # longest that a text of many words may take


def tokens_with(vocab: Any, attributes: int) -> list[int]:
    """Return the ids of all tokens that have one of these attributes."""
    pointer, count = ffi.cast("void *", address(vocab)), ffi.new("int32_t *")
    check(lib.ps_vocab_with(pointer, attributes, ffi.NULL, 0, count))
    ids = ffi.new("int32_t[]", max(1, count[0]))
    check(lib.ps_vocab_with(pointer, attributes, ids, count[0], count))
    return list(ids[0 : count[0]])


def words_of(vocab: Any, tokens: Iterable[int], encoding: str = "utf-8") -> dict[str, int]:
    """Return the texts of tokens, as their vocabulary has them, with the ids."""
    read = llama_cpp.llama_vocab_get_text
    found = {read(vocab, token).decode(encoding, "ignore"): token for token in tokens}
    found.pop("", None)
    return found


class Words(dict[str, int]):
    """Single-token words and their ids. At each place in a text the longest word is found, as in llama.cpp.

    Where one can begin is found by its first two characters, and how long it is by trying the lengths there are.
    """

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """The words' lengths by their beginnings, the greatest first."""
        found: dict[str, set[int]] = {}
        for word in self:
            found.setdefault(word[:2], set()).add(len(word))
        return {start: sorted(each, reverse=True) for start, each in found.items()}

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        starts = sorted(self._lengths, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, starts)) or r"(?!)")

    def places(self, text: str, *, overlapping: bool = False) -> Iterator[tuple[int, int]]:
        """Yield where words begin and end, one after the other. overlapping: also those that begin within another."""
        at = 0
        while match := self._starts.search(text, at):
            start = match.start()
            end = start + self._length(text, start, match[0])
            if end > start:
                yield start, end
            at = start + 1 if overlapping or end == start else end

    def _length(self, text: str, start: int, head: str) -> int:
        for first in {head: None, head[:1]: None}:
            for n in self._lengths.get(first, ()):
                if text[start : start + n] in self:
                    return n
        return 0

    def split(self, text: str, vocab: Any) -> Iterator[str | int]:
        """Yield the stretches of a text and the tokens between them, which may strip the white space around them."""
        at, strip = 0, False
        for start, end in self.places(text):
            token = self[text[start:end]]
            attr = llama_cpp.llama_vocab_get_attr(vocab, token)
            piece = text[at:start].lstrip(_SPACE) if strip else text[at:start]
            if attr & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP:
                piece = piece.rstrip(_SPACE)
            if piece:
                yield piece
            yield token
            at, strip = end, bool(attr & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
        if piece := text[at:].lstrip(_SPACE) if strip else text[at:]:
            yield piece


_Result = TypeVar("_Result")

_STARTING = threading.Lock()  # guards `threading.stack_size`, which applies to the whole process


_HERE = threading.local()  # `stack`: the stack of a thread that was started here


def call_with_stack(work: Callable[[], _Result], stack: int) -> _Result:
    """Call `work` on a thread with `stack` bytes of stack, and return its result. Unused stack is only address space.

    That is the calling thread if it was started here.

    An interrupt is raised only once the work is done, because its data must not be freed earlier. Raises EngineError if
    there is no memory for the stack.
    """
    if getattr(_HERE, "stack", 0) >= stack:
        return work()

    def begun() -> _Result:
        _HERE.stack = stack
        return work()

    future = _started(begun, stack)
    interrupt: BaseException | None = None
    while not future.done():
        try:
            wait([future])
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return future.result()


def _started(work: Callable[[], _Result], stack: int) -> Future[_Result]:
    pool = ThreadPoolExecutor(1, "pyspec-deep")
    with _STARTING:
        before = threading.stack_size(stack)
        try:
            return pool.submit(work)
        except (RuntimeError, MemoryError) as error:
            raise EngineError(
                f"no memory for a stack of {stack >> 20} MiB, which a text as long as this needs",
                "shorten its lines",
            ) from error
        finally:
            threading.stack_size(before)
            pool.shutdown(wait=False)


_BASE_STACK = 1 << 20
_STACK_A_BYTE = 768  # about twice what llama.cpp takes per character when built with GCC: 330 bytes
SHALLOW = 1024  # length of a run for which any thread has enough stack, bytes
MAX_STACK = 1 << 30
MAX_STEPS = 20_000_000  # limit for a search that is quadratic in a run's length: some seconds
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

_PARAGRAPH = re.compile(rb"\n(?=[0-9A-Za-z])")  # no match of llama.cpp's words spans it


class Pretokenizer:
    """What the regular expressions by which llama.cpp splits a text into words demand of it.

    Without a splitter of its own, llama.cpp uses std::regex, which recurses for each character of a match. pre: the name of
    the expressions, from the file's `tokenizer.ggml.pre`.
    """

    def __init__(self, vocab: Any, pre: str) -> None:
        kind = llama_cpp.llama_vocab_type(vocab)
        self._recurses = kind == llama_cpp.LLAMA_VOCAB_TYPE_BPE
        spm, rwkv = llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_RWKV
        self._decodes = kind not in (spm, rwkv)
        self._pre = pre
        self.keeps_all = (self._recurses or kind == spm) and pre not in _LOSES
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


_PIECE_BYTES = 256

_FREED: set[int] = set()  # addresses of vocabularies of closed models, which objects may still read


def forget_vocabulary(vocab: Any) -> None:
    """Mark a vocabulary as about to be freed: from now on, reading it raises EngineError."""
    _FREED.add(address(vocab))


def _check_there(vocabulary: int) -> None:
    if vocabulary in _FREED:
        raise EngineError("the model of this vocabulary was closed", "load it again")


def piece_reader(vocab: Any, *, special: bool = False) -> Callable[[int], bytes]:
    """Return a function from token id to bytes, with a cache. Unless `special`, tokens that control or end an answer have none.

    The function raises InputError for an invalid id, for which llama.cpp would end the process.
    """
    return _Pieces(vocab, special, ends=special).__getitem__


def check_token(token: int, n_vocab: int) -> None:
    """Raise InputError for an id that a vocabulary of this size does not have."""
    if not 0 <= token < n_vocab:
        raise InputError(f"{token} is not a token id", f"this model has ids 0 to {n_vocab - 1}")


def check_tokens(tokens: Sequence[int], n_vocab: int) -> None:
    """Raise InputError for ids that a vocabulary of this size does not have."""
    for token in (min(tokens, default=0), max(tokens, default=0)):
        check_token(token, n_vocab)


class _Pieces(dict[int, bytes]):
    """Bytes by token id, read on first use. Later look-ups run no Python code.

    ends: whether a token that ends an answer has bytes though the file types it as an ordinary one.
    """

    def __init__(self, vocab: Any, special: bool, *, ends: bool) -> None:
        super().__init__()
        self._vocab, self._with_special, self._ends = vocab, special, ends
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
        self._address = address(vocab)
        _FREED.discard(self._address)  # a new model may have the address of a freed one

    def __missing__(self, token: int) -> bytes:
        _check_there(self._address)
        check_token(token, self._n_vocab)
        ends = not self._ends and llama_cpp.llama_vocab_is_eog(self._vocab, int(token))
        piece = b"" if ends else _piece(self._vocab, int(token), special=self._with_special)
        self[int(token)] = piece
        return piece


def all_pieces(vocab: Any) -> list[bytes]:
    """Return the bytes of all tokens, those of control tokens as well."""
    buffer: Any = ctypes.create_string_buffer(_PIECE_BYTES)
    read, pieces = llama_cpp.llama_token_to_piece, list[bytes]()
    for token in range(llama_cpp.llama_vocab_n_tokens(vocab)):
        n = read(vocab, token, buffer, _PIECE_BYTES, 0, True)
        pieces.append(buffer[:n] if n >= 0 else _piece(vocab, token, special=True))
    return pieces


def _piece(vocab: Any, token: int, special: bool) -> bytes:
    """Return the bytes of a token; a control token has some only with `special`."""
    buffer, room = ctypes.create_string_buffer(_PIECE_BYTES), _PIECE_BYTES
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, room, 0, special)
    if n < 0:
        buffer, room = ctypes.create_string_buffer(-n), -n
        n = llama_cpp.llama_token_to_piece(vocab, token, buffer, room, 0, special)
    return bytes(buffer.raw[:n])


class GuardedTokenizer(LlamaTokenizer):  # type: ignore[misc]  # llama_cpp is untyped
    """llama-cpp-python's tokenizer, guarded against inputs for which llama.cpp would end the process or never return.

    llama.cpp ends the process for invalid ids, for characters that a vocabulary without byte tokens cannot spell, for code
    points beyond Unicode, and for a run of one kind of character that needs more stack than the thread has.
    """

    def __init__(self, llama: Any) -> None:
        super().__init__(llama)
        self._vocab = llama._model.vocab
        self._address = address(self._vocab)
        self._piece = _Pieces(self._vocab, special=False, ends=True).__getitem__
        self._special = piece_reader(self._vocab, special=True)
        self._alphabet = Alphabet.of(self._vocab)
        metadata = {
            **getattr(llama, "metadata", {}),
            **(getattr(llama, "kv_overrides", None) or {}),
        }
        self._expressions = Pretokenizer(self._vocab, str(metadata.get("tokenizer.ggml.pre", "")))

    def fewest(self, text: bytes) -> int:
        """Return a lower bound of a text's token count without tokenizing it, from the bytes of the longest token."""
        if self._alphabet is not None or not self._expressions.keeps_all:
            return 0
        return -(-len(text.translate(None, b" \t\n\v\f\r")) // self._longest)

    @cached_property
    def _longest(self) -> int:
        _check_there(self._address)
        ids = range(llama_cpp.llama_vocab_n_tokens(self._vocab))
        text = llama_cpp.llama_vocab_get_text
        return max((len(text(self._vocab, token)) for token in ids), default=0) or 1

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """See `llama_cpp.Llama.tokenize`. Raises InputError."""
        _check_there(self._address)
        if self._alphabet is not None:
            self._alphabet.check(text, special)
        text = self._expressions.mend(text)
        if len(text) < SHORT:
            return self._deep(text, add_bos, special)
        head, tail = self._ends if add_bos else ([], [])
        return [*head, *self._by_words(text, special), *tail]

    @cached_property
    def _everywhere(self) -> Words:
        """Words that are tokens in any text. llama.cpp makes some of them control words too, such as those that end an answer."""
        tokens = set(tokens_with(self._vocab, _ALWAYS)) - set(tokens_with(self._vocab, PARSED))
        return Words(words_of(self._vocab, tokens, "latin-1"))

    @cached_property
    def _parsed(self) -> Words:
        """Those, and control words."""
        return Words(words_of(self._vocab, tokens_with(self._vocab, _ALWAYS | PARSED), "latin-1"))

    def _by_words(self, text: bytes, special: bool) -> list[int]:
        """Tokenize a text word by word, and what is between them. special: whether control words are tokens too.

        The text may be no UTF-8, so its characters are its bytes here. Raises InputError if it takes longer than BUDGET_S.
        """
        words = self._parsed if special else self._everywhere
        known: dict[str, list[int]] = {}
        found: list[int] = []
        end = monotonic() + BUDGET_S
        for piece in words.split(text.decode("latin-1"), self._vocab):
            if isinstance(piece, int):
                found.append(piece)
                continue
            if (tokens := known.get(piece)) is None:
                if monotonic() > end:
                    raise InputError(
                        f"turning the text into tokens takes longer than {BUDGET_S:.0f} s",
                        "send it in parts",
                    )
                tokens = self._deep(piece.encode("latin-1"), False, False)
                if len(piece) <= _REPEATED and len(known) < _MAX_KNOWN:
                    known[piece] = tokens
            found += tokens
        return found

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """Tokens that the vocabulary wants before and after each text."""
        bare, whole = (self._tokens(b"a", begins, False) for begins in (False, True))
        n = len(whole) - len(bare)
        at = next(i for i in range(n + 1) if whole[i : i + len(bare)] == bare)
        return whole[:at], whole[at + len(bare) :]

    def _deep(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
        if not (stack := self._expressions.stack(text)):
            return self._tokens(text, add_bos, special)
        return call_with_stack(lambda: self._tokens(text, add_bos, special), stack)

    def _tokens(self, text: bytes, add_bos: bool, special: bool) -> list[int]:
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
        _check_there(self._address)
        text = b"".join(map(self._special if special else self._piece, tokens))
        begins = len(tokens) > 0 and tokens[0] == llama_cpp.llama_vocab_bos(self._vocab)
        return text[1:] if begins and text[:1] == b" " else text


class Alphabet:
    """What a SentencePiece vocabulary without all byte tokens can spell.

    llama.cpp spells a character that is not a token by the tokens of its bytes, and ends the process if there are none.
    """

    def __init__(self, words: set[bytes], parsed: list[bytes]) -> None:
        self._words = words
        self._parsed = re.compile(b"|".join(map(re.escape, parsed))) if parsed else None

    @classmethod
    def of(cls, vocab: Any) -> Alphabet | None:
        """Return the alphabet of a vocabulary, or None if it can spell every text."""
        if llama_cpp.llama_vocab_type(vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return None
        n_vocab, text = llama_cpp.llama_vocab_n_tokens(vocab), llama_cpp.llama_vocab_get_text
        missing = {b"<0x%02X>" % byte for byte in range(256)}
        words: set[bytes] = set()
        for token in range(n_vocab):
            words.add(text(vocab, token))
            missing.discard(text(vocab, token))
            if not missing:  # byte tokens come first, so this ends early
                return None
        special = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        parsed = [text(vocab, token) for token in tokens_with(vocab, special)]
        return cls(words, sorted(filter(None, parsed), key=len, reverse=True))

    def check(self, text: bytes, special: bool) -> None:
        """Raise InputError for the first character that cannot be spelled."""
        if special and self._parsed is not None:
            text = self._parsed.sub(b"", text)
        try:
            characters = set(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputEncoding(f"the text is not UTF-8 at byte {error.start}", _OTHER) from None
        # llama.cpp puts a space before a text unless the file says otherwise; it offers no way to ask
        for char in sorted(characters | {" "} if characters else characters):
            shown = ("\u2581" if char == " " else char).encode()
            ways = [{b"<0x%02X>" % byte, bytes([byte])} for byte in shown]
            if shown not in self._words and any(map(self._words.isdisjoint, ways)):
                raise InputError(f"this model's vocabulary cannot spell {char!r}", _OTHER)


_OTHER = "leave it out, or use a model with byte tokens"
