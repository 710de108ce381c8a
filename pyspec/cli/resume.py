"""What `generate` keeps for the next run: the conversation, for `-c`, and the state of what was read of a prompt."""

from __future__ import annotations

import ctypes
import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import llama_cpp
import msgspec

from pyspec.chat import files
from pyspec.chat.conversation import Conversation, Exchange, LlamaSpeaker, Reply, spoken
from pyspec.chat.files import new_path, newest
from pyspec.cli.options import ModelOptions
from pyspec.errors import InputError, OptionError, PyspecError
from pyspec.files import write_whole
from pyspec.llama import Piece, SpeculativeLlama
from pyspec.store import file_sha256
from pyspec.text import PLAIN, ChatTemplate
from pyspec.tokens import common_prefix

# -- conversations -----------------------------------------------------------------------------------------------------


def with_last_model(models: ModelOptions) -> ModelOptions:
    """The options with the model of the newest chat, unless another one is named."""
    path = newest() if models.model is None else None
    model = files.load(path).model.path if path is not None else ""
    return replace(models, model=model) if model and Path(model).is_file() else models


@dataclass
class Dialogue:
    """The conversation that an answer belongs to, and the file it is kept in, if any."""

    llm: SpeculativeLlama
    template: ChatTemplate
    conversation: Conversation
    path: Path | None
    raw: bool

    @classmethod
    def begin(
        cls, llm: SpeculativeLlama, system: str | None, *, raw: bool, going_on: bool, log: bool
    ) -> Dialogue:
        """A new one, or with `going_on` the newest that was logged. Raises InputError where there is none."""
        template = ChatTemplate.of(llm)
        raw = raw or template.format is PLAIN
        made = cls(llm, template, Conversation(system), None, raw)
        if going_on:
            made._go_on(newest(), system)
        elif log and not raw:
            made.path = new_path()
        return made

    def _go_on(self, path: Path | None, system: str | None) -> None:
        if path is None:
            raise InputError("there is no answer to go on with", "ask something first, without -c")
        if self.raw:
            raise InputError(
                "a text without a chat template has no turns to go on with", "leave -c or --raw out"
            )
        self.conversation, _ = files.restore(files.load(path), LlamaSpeaker(self.llm))
        if system is not None:
            self.conversation.system = system
        self.path = path

    def prompt(self, text: str) -> list[int]:
        """The tokens of the conversation with one more question, or of a raw text."""
        if self.raw:
            tokens: list[int] = self.llm.tokenize(
                text.encode(), add_bos=bool(self.llm._model.add_bos_token()), special=False
            )
            return tokens or [self.llm.token_bos()]
        self.conversation.exchanges.append(Exchange(text))
        return self.template.prompt(self.conversation.messages())

    def keep(self, text: str, pieces: list[Piece], seed: int) -> None:
        """Log the answer to the newest question; a log that cannot be written is said and ends nothing."""
        said = "".join(piece.text for piece in pieces)
        if self.path is None or not said:
            return
        tokens = [token for piece in pieces for token in piece.tokens]
        answer = Reply(said, spoken(tokens, said, self.llm.piece), pieces[-1].finish_reason, seed)
        self.conversation.exchanges[-1] = Exchange(text, answer)
        try:
            target = LlamaSpeaker(self.llm).target()
            files.save(self.path, self.conversation, {}, target)
        except PyspecError as error:
            click.echo(f"the answer is not logged: {error}", err=True)


# -- prompts -----------------------------------------------------------------------------------------------------------


log = logging.getLogger("pyspec")

_MAGIC = b"pyspec-prompt-cache-1\n"


class _Head(msgspec.Struct):
    """What a cached state belongs to: the target's hash, how it is held, the tokens it is of, and its own hash."""

    model: str
    layout: str
    tokens: list[int]
    sha256: str


class PromptCache:
    """One file for the state of one prompt's tokens; None for no file.

    A file of another model, of other settings, or damaged is never put into a context: its hash is checked first.
    """

    def __init__(self, llm: SpeculativeLlama, path: Path | None) -> None:
        self._llm = llm
        self._path = path
        self._restored = 0

    def restore(self, tokens: list[int]) -> int:
        """Put into the context what the file holds of a prompt's beginning; returns how many tokens that saves."""
        if self._path is None or not self._path.exists():
            return 0
        if not self._path.is_file():  # a pipe waits for its writer, and a device has no end
            raise OptionError(f"{self._path} is no regular file", "name another one")
        found = self._read(self._path)
        if found is None:
            return 0
        head, state = found
        same = common_prefix(head.tokens, tokens)
        if not same:
            log.warning("%s is of another prompt, which is replaced", self._path.name)
            return 0
        context = self._llm._ctx.ctx
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if llama_cpp.llama_state_seq_set_data(context, buffer, len(state), 0) == 0:
            log.warning("llama.cpp does not take %s; the prompt is read anew", self._path.name)
            return 0
        n = len(head.tokens)
        self._llm.input_ids[:n] = head.tokens
        self._llm.n_tokens = n
        self._restored = min(same, n)
        return self._restored

    def keep(self, tokens: list[int]) -> None:
        """Write the state of a prompt that was just read; failing is said and ends nothing."""
        if self._path is None or len(tokens) <= self._restored + 1:
            return
        try:
            self._write(self._path)
        except (OSError, PyspecError) as error:
            log.warning("the prompt cache is not written: %s", error)

    def _write(self, path: Path) -> None:
        context = self._llm._ctx.ctx
        size = llama_cpp.llama_state_seq_get_size(context, 0)
        buffer = (ctypes.c_uint8 * size)()
        size = llama_cpp.llama_state_seq_get_data(context, buffer, size, 0)
        state = bytes(buffer[:size])
        held = [int(token) for token in self._llm.input_ids[: self._llm.n_tokens]]
        digest = hashlib.sha256(state).hexdigest()
        head = msgspec.json.encode(_Head(self._model(), self._layout(), held, digest))
        write_whole(path, [_MAGIC, head, b"\n", state])

    def _read(self, path: Path) -> tuple[_Head, bytes] | None:
        try:
            data = path.read_bytes()
            magic, rest = data[: len(_MAGIC)], data[len(_MAGIC) :]
            line, _, state = rest.partition(b"\n")
            head = msgspec.json.decode(line, type=_Head) if magic == _MAGIC else None
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s cannot be used as a prompt cache: %s", path.name, error)
            return None
        if head is None:
            raise OptionError(f"{path} is there and is no prompt cache", "name another file")
        if head.model != self._model() or head.layout != self._layout():
            log.warning("%s is of another model or other settings, and is replaced", path.name)
            return None
        if hashlib.sha256(state).hexdigest() != head.sha256 or not self._fits(head.tokens):
            log.warning("%s is damaged; the prompt is read anew", path.name)
            return None
        return head, state

    def _fits(self, tokens: list[int]) -> bool:
        known = range(self._llm.n_vocab())
        return len(tokens) < self._llm.n_ctx() and all(token in known for token in tokens)

    def _model(self) -> str:
        return file_sha256(self._llm.model_path)

    def _layout(self) -> str:
        own: Any = self._llm.context_params
        return f"{own.type_k} {own.type_v} {own.flash_attn_type} {llama_cpp.__version__}"
