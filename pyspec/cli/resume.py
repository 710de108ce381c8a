"""What `generate` says to a model: one question, or one more of the last chat; kept for the next `-c`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from pyspec.chat import files
from pyspec.chat.conversation import Conversation, Exchange, Reply, SavedModel, spoken
from pyspec.chat.files import new_path, newest
from pyspec.cli.options import ModelOptions
from pyspec.errors import InputError, PyspecError
from pyspec.llama import SpeculativeLlama
from pyspec.stream import Piece
from pyspec.template import PLAIN, ChatTemplate


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
        self.conversation, _ = files.restore(files.load(path), self)
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
            files.save(self.path, self.conversation, {}, self.target())
        except PyspecError as error:
            click.echo(f"the answer is not logged: {error}", err=True)

    def target(self) -> SavedModel:
        """Name and hash of the target's file."""
        return files.target_of(Path(self.llm.model_path))

    def is_text(self, token: int) -> bool:
        """Whether an id stands for bytes of text."""
        return 0 <= token < self.llm.n_vocab() and bool(self.llm.piece(token))

    def piece(self, token: int) -> bytes:
        """Bytes of a token."""
        return self.llm.piece(token)
