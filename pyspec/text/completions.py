"""OpenAI's chat format: completions with reasoning and calls apart from the content, `response_format` and `tool_choice`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec.structs import asdict

from pyspec.errors import InputError
from pyspec.grammar.languages import Language, constraint_of, of_choice, of_grammar, of_regex
from pyspec.grammar.schemas import ANY_OBJECT, of_schema
from pyspec.text.messages import from_outside
from pyspec.text.parser import joined
from pyspec.text.parts import AnswerPart, Result, Step, Token, TokenLogprobs, Usage, chat_logprobs


class ChatCompletion:
    """One chat completion by a model's own template.

    llm: a `TargetLlama`. given: arguments of `create_chat_completion`, by name. arguments: the template's variables. Raises
    InputError if the messages or the answer's form cannot be used.
    """

    def __init__(
        self, llm: Any, given: Mapping[str, Any], arguments: Mapping[str, Any] | None
    ) -> None:
        functions, stop = given["functions"] or (), given["stop"]
        tools = given["tools"] or [{"type": "function", "function": each} for each in functions]
        choice = given["function_call"] or given["tool_choice"]
        if "none" in (given["tool_choice"], given["function_call"]):
            tools = []
        messages, named = from_outside(given["messages"]), functions_of(tools)
        self.prompt: list[int] = llm.template.prompt(messages, tools=tools, arguments=arguments)
        left, wanted = tools_left(named, choice if tools else None)
        known = {each["name"]: each.get("parameters") for each in left}
        stops = [*([stop] if isinstance(stop, str) else stop or ()), *llm.template.stop]
        content = format_language(given["response_format"])
        if content is None and given["grammar"] is not None:
            content = constraint_of(given["grammar"]).language
        self.grammar = llm.speech.shape(self.prompt, content, known, wanted)
        """What the answer must follow; None for any text."""
        self._id, self._created = uuid.uuid4().hex, int(time.time())
        self._reader = llm.speech.reader(
            self.prompt, stops, functions=known, name=self._id, forced=wanted is not None
        )
        self._legacy = bool(functions)
        self._n_top = given["top_logprobs"] or 0 if given["logprobs"] else None
        self._llm, self._model = llm, given["model"] or llm.model_path
        self._most = 0
        self.tokens: list[int] = []  # tokens of the answer so far, without the one that ends it
        self._likely: list[tuple[Token, TokenLogprobs | None]] = []
        self._reason: str | None = None

    def fit(self, most: int | None) -> None:
        """Allow so many tokens, None for all that fit. Raises ValueError, as servers on llama-cpp-python expect it."""
        n_ctx: int = self._llm._n_ctx  # noqa: SLF001 - llama-cpp-python's own, which it counts with
        if len(self.prompt) >= n_ctx:
            raise ValueError(
                f"Requested tokens ({len(self.prompt)}) exceed context window of {n_ctx}"
            )
        room = n_ctx - len(self.prompt)
        self._most = room if most is None or most <= 0 else min(most, room)

    def whole(self, steps: Generator[Step, None, None]) -> dict[str, Any]:
        """The completion that these steps make."""
        parts: list[AnswerPart] = []
        self._llm.recall(self.prompt)
        with closing(steps):
            while self._reason is None:
                parts += self._take(next(steps))
        self._llm.keep([*self.prompt, *self.tokens])
        answer = Result.of(parts)
        message = answer.message()
        if self._legacy and answer.calls:
            message["function_call"] = answer.calls[0]["function"]
        usage = asdict(Usage.of(len(self.prompt), len(self.tokens)))
        return self._made("", {"message": message}, ended=True) | {"usage": usage}

    def chunks(self, steps: Generator[Step, None, None]) -> Iterator[dict[str, Any]]:
        """The chunks of a stream; the first one comes with the answer's first tokens."""
        self._llm.recall(self.prompt)
        with closing(steps):
            for n, step in enumerate(steps):
                if n == 0:
                    yield self._made(".chunk", {"delta": {"role": "assistant"}})
                for delta in filter(None, map(self._delta, self._take(step))):
                    yield self._made(".chunk", {"delta": delta})
                if self._reason is not None:
                    break
        self._llm.keep([*self.prompt, *self.tokens])
        yield self._made(".chunk", {"delta": {}}, ended=True)

    def _delta(self, part: AnswerPart) -> dict[str, Any]:
        """A part as a delta; the first call of `functions` has its old name, too."""
        delta = part.delta()
        if self._legacy and part.index == 0 and "tool_calls" in delta:
            delta["function_call"] = delta["tool_calls"][0]["function"]
        return delta

    def _take(self, step: Step) -> list[AnswerPart]:
        """The parts that a step makes safe to show; after the last one there is a reason why the answer ended."""
        parts, reader = list[AnswerPart](), self._reader
        for token in step.tokens:
            parts += reader.push([token.id])
            if step.finish_reason == "stop" and token is step.tokens[-1]:
                break  # the token that only says that this is the end
            self.tokens.append(token.id)
            if self._n_top is not None:
                row = self._llm.scores[len(self.prompt) + len(self.tokens) - 2]
                self._likely.append((token, TokenLogprobs.of(row, token.id, self._n_top)))
            if reader.done:
                break
        reason = "stop" if reader.done else step.finish_reason
        # half a character may need a token more than allowed
        if reason is None and len(self.tokens) >= self._most and not reader.halfway:
            reason = "length"
        if reason is not None:
            self._reason = "length" if reason == "context" else reader.reason(reason)
            parts += reader.finish()
        return joined(parts)

    def _made(self, kind: str, shown: dict[str, Any], *, ended: bool = False) -> dict[str, Any]:
        """The whole completion, or a chunk."""
        likely, self._likely = self._likely, []
        logprobs = {"content": chat_logprobs(self._llm.piece, likely), "refusal": None}
        cut = {"reasoning_cut": True} if ended and self._reader.inside else {}
        choice = {
            "index": 0,
            **shown,
            "logprobs": logprobs if likely else None,
            "finish_reason": self._reason if ended else None,
            **cut,
        }
        known = {
            "id": f"chatcmpl-{self._id}",
            "object": f"chat.completion{kind}",
            "created": self._created,
            "model": self._model,
            "choices": [choice],
        }
        return {**known, "speculation": self._llm.last_speculation} if ended else known


def format_language(form: Mapping[str, Any] | None) -> Language | None:
    """Return the language of a `response_format`, or None for any text. Raises InputError."""
    if not form:
        return None
    if not isinstance(form, Mapping):
        raise InputError(
            f"response_format is {str(form)[:80]!r}", 'give {"type": "json_object"} or the like'
        )
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = form.get("schema")
        return of_schema(ANY_OBJECT if schema is None else schema)
    if kind == "json_schema":
        holder = form.get("json_schema")
        schema = holder.get("schema") if isinstance(holder, Mapping) else None
        return of_schema(schema if schema is not None else form.get("schema"))
    if kind not in _OTHERS:
        hint = f"use text, json_object, json_schema, {', '.join(_OTHERS)}"
        raise InputError(f"response_format is {kind!r}", hint)
    return _OTHERS[kind](form.get(str(kind)))


_OTHERS: dict[Any, Callable[[Any], Language]] = {
    "regex": of_regex,
    "choice": of_choice,
    "grammar": of_grammar,
}
"""Formats that are no JSON; the key of what they demand is named as they are."""


def functions_of(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the functions of tools in OpenAI's form. Raises InputError."""
    found = [tool.get("function") if isinstance(tool, Mapping) else None for tool in tools]
    named = [f for f in found if isinstance(f, dict) and isinstance(f.get("name"), str)]
    if len(named) < len(found):
        raise InputError("a tool has no function with a name")
    return named


def tools_left(
    tools: Sequence[Mapping[str, Any]], choice: Any
) -> tuple[list[Mapping[str, Any]], str | None]:
    """Return the functions that a `tool_choice` allows, and the call it requires.

    That is a function's name, "required" for any call, or None if the model may answer in text. Raises InputError.
    """
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        names = [_name_of(each) for each in allowed.get("tools") or ()]
        for name in names:
            _one_of(tools, name)
        left = [tool for tool in tools if tool["name"] in names]
        return left, _wanted(allowed.get("mode"))
    if isinstance(choice, Mapping):
        return list(tools), _one_of(tools, _name_of(choice))
    return list(tools), _wanted(choice)


def _name_of(choice: Any) -> Any:
    if not isinstance(choice, Mapping):
        return None
    named = choice.get("function", choice)
    # a tool that the server would run has a type alone
    return named.get("name", named.get("type")) if isinstance(named, Mapping) else None


def _one_of(tools: Sequence[Mapping[str, Any]], name: Any) -> str:
    if not any(tool["name"] == name for tool in tools):
        raise InputError(f"tool_choice names {str(name)[:80]!r}, which is not among the tools")
    return str(name)


def _wanted(choice: Any) -> str | None:
    if choice not in (None, "auto", "required"):
        raise InputError(
            f"tool_choice is {str(choice)[:80]!r}", "use none, auto, required or a function"
        )
    return "required" if choice == "required" else None
