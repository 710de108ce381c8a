"""Chat prompts as tokens.

Chat templates are programs, and a model file is somebody else's. So its template is only looked at for the marks of a few known
formats; the formats themselves are here, as data. Parts of the format are tokenised with special tokens, texts of users
without, so nobody's text becomes a control token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pyspec.errors import InputError


class Message(TypedDict, total=False):
    """One turn: role is system, user or assistant. `tokens`, where given, stands for the content as it was generated."""

    role: str
    content: str
    reasoning_content: str
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
