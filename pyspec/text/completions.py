"""Chat completions of llama-cpp-python's shape, with reasoning and calls of tools told apart."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llama_cpp import llama_chat_format
from llama_cpp.llama_grammar import JSON_GBNF

from pyspec.errors import InputError
from pyspec.sampling import Constraint, schema_grammar
from pyspec.text.answer import AnswerReader
from pyspec.text.parts import AnswerPart, WholeAnswer


def needs_telling_apart(llama: Any, tools: Any) -> bool:
    """Whether an answer may be more than content, and this model's tokens can be heard."""
    if not hasattr(llama, "binding") or llama._plain or llama.template.is_plain:  # noqa: SLF001
        return False
    notation = llama.speech.notation
    return bool(tools) or bool(notation.marks(tools=False))


class ChatCompletion:
    """One answer of a `SpeculativeLlama`, whose tokens are heard while llama-cpp-python's own loop runs.

    tools: those that may be called, in OpenAI's form. legacy: whether they were given as functions, as OpenAI's older form has
    it. wanted: the name of the one that must be called, or "required". stop: strings that end the content.
    """

    def __init__(
        self,
        llama: Any,
        prompt: Sequence[int],
        tools: Sequence[Mapping[str, Any]],
        wanted: str | None,
        stop: Sequence[str],
        *,
        legacy: bool,
    ) -> None:
        self._llama, self._prompt, self._wanted = llama, prompt, wanted
        self._functions = {
            tool["function"]["name"]: tool["function"].get("parameters") for tool in tools
        }
        if wanted not in (None, "required", *self._functions):
            raise InputError(f"tool_choice names {wanted!r}, which is no tool")
        name = uuid.uuid4().hex
        self._legacy = legacy
        self._reader: AnswerReader = llama.speech.reader(
            prompt, stop, functions=self._functions, name=name
        )
        self._heard: list[AnswerPart] = []

    def run(
        self, *, stream: bool, grammar: Any, response_format: Mapping[str, Any] | None, **rest: Any
    ) -> Any:
        """The result, or its chunks. grammar: a `LlamaGrammar`; response_format: of OpenAI; both shape the content."""
        text = _format_grammar(response_format)
        functions: dict[str, Any] | None = self._functions
        if text is None and grammar is not None:
            text = grammar._grammar  # noqa: SLF001
            functions = (
                functions if self._wanted else None
            )  # the caller's own grammar is all that may be said
        shape = self._llama.speech.shape(self._prompt, text, functions, self._wanted)
        with self._llama.binding(hears=self._hears):
            made = self._llama.create_completion(
                prompt=list(self._prompt),
                stream=stream,
                stop=[],
                grammar=Constraint(*shape) if shape else None,
                **rest,
            )
        chat = llama_chat_format._convert_completion_to_chat(made, stream=stream)  # noqa: SLF001
        return self._chunks(chat) if stream else self._whole(chat)

    def _hears(self, token: int) -> bool:
        """Take a token; whether the answer ends with it."""
        self._heard += self._reader.push([token])
        return self._reader.done

    def _whole(self, chat: Any) -> Any:
        choice = chat["choices"][0]
        reason = "stop" if self._reader.done else choice["finish_reason"]
        answer = WholeAnswer.of(self._heard + self._reader.finish())
        choice["message"] = answer.message()
        if self._legacy and answer.calls:
            choice["message"]["function_call"] = answer.calls[0].as_openai()["function"]
        choice["finish_reason"] = self._reader.reason(reason)
        if self._reader.inside:
            choice["reasoning_cut"] = True
        return chat

    def _chunks(self, chunks: Any) -> Iterator[Any]:
        for chunk in chunks:
            choice = chunk["choices"][0]
            if "role" in choice["delta"]:
                yield chunk
                continue
            ended = choice["finish_reason"]
            parts, self._heard = self._heard, []
            if ended:
                parts += self._reader.finish()
            for delta in filter(None, (part.delta() for part in parts)):
                shown = {**choice, "delta": delta, "finish_reason": None}
                yield {**chunk, "choices": [shown]}
                choice = {**choice, "logprobs": None}
            if ended:
                yield {**chunk, "choices": [{**choice, **self._end(ended), "delta": {}}]}

    def _end(self, ended: str) -> dict[str, Any]:
        reason = self._reader.reason("stop" if self._reader.done else ended)
        cut = {"reasoning_cut": True} if self._reader.inside else {}
        return {"finish_reason": reason, **cut}


def _format_grammar(form: Mapping[str, Any] | None) -> str | None:
    """GBNF of OpenAI's `response_format`."""
    kind = form.get("type") if form else None
    if form is None or kind not in ("json_object", "json_schema"):
        return None
    holder = form.get("json_schema") if kind == "json_schema" else form
    schema = holder.get("schema") if isinstance(holder, Mapping) else None
    return str(JSON_GBNF) if schema is None else schema_grammar(schema)
