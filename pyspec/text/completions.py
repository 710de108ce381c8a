"""Chat completions in llama-cpp-python's format, with reasoning and tool calls separated from the content."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llama_cpp import LogitsProcessorList, llama_chat_format

from pyspec.grammar.languages import Constraint, Language, constraint_of
from pyspec.grammar.masks import MaskProcessor, Masks
from pyspec.grammar.schemas import held, tool_schema
from pyspec.text.formats import format_language, tools_left
from pyspec.text.messages import from_outside
from pyspec.text.parts import AnswerPart
from pyspec.text.result import Result
from pyspec.text.template import ChatTemplate


class ChatHandler:
    """A chat template as a llama-cpp-python chat handler. end: text of the token that ends an answer."""

    def __init__(self, template: ChatTemplate, end: str) -> None:
        self._template, self._end = template, [end] if end else []

    def __call__(
        self,
        *,
        llama: Any,
        messages: Any,
        tools: Any = None,
        functions: Any = None,
        tool_choice: Any = None,
        function_call: Any = None,
        stream: bool = False,
        stop: Any = None,
        response_format: Mapping[str, Any] | None = None,
        grammar: Any = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Any:
        """Answer messages as llama-cpp-python's handlers do: a completion, or its chunks if `stream`."""
        tools = tools or [{"type": "function", "function": each} for each in functions or ()]
        if "none" in (tool_choice, function_call):
            tools = []
        arguments = chat_template_kwargs or llama.in_chat.args
        prompt = self._template.prompt(from_outside(messages), tools=tools, arguments=arguments)
        shape = _Shape(tools, function_call or tool_choice, response_format, grammar)
        stops = [*([stop] if isinstance(stop, str) else stop or ()), *self._template.stop]
        answer = (
            PartsAnswer(llama, prompt, shape, stops, legacy=bool(functions))
            if _may_have_parts(llama, tools)
            else ContentAnswer(shape, [*self._end, *stops])
        )
        with answer.hearing(llama):
            made = llama.create_completion(
                prompt=prompt,
                stream=stream,
                stop=answer.stop,
                logprobs=top_logprobs if logprobs else None,
                **_constrained(llama, answer.grammar, sampling),
            )
        return answer.chat(made, stream=stream)


def _may_draft(llama: Any) -> bool:
    """Whether it is a `SpeculativeLlama` in a mode that has an engine: no score buffer, no embedder."""
    return hasattr(llama, "binding") and not llama._plain  # noqa: SLF001


def _may_have_parts(llama: Any, tools: Any) -> bool:
    """Whether an answer may hold more than content, and this model can report its tokens."""
    if not _may_draft(llama) or llama.template.is_plain:
        return False
    return bool(tools) or bool(llama.speech.notation.marks(tools=False))


def _constrained(llama: Any, grammar: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `create_completion` with a grammar; only a `SpeculativeLlama` that may draft knows constraints."""
    if not isinstance(grammar, Constraint) or _may_draft(llama):
        return {**options, "grammar": grammar}
    processors = [*(options.get("logits_processor") or ()), MaskProcessor(Masks(grammar, llama))]
    return {**options, "logits_processor": LogitsProcessorList(processors)}


class _Shape:
    """What an answer must look like.

    functions: parameter schemas by name of the functions that may be called. name: the one that must be called, or
    "required". form: OpenAI's `response_format`. grammar: a `LlamaGrammar`. Raises InputError.
    """

    def __init__(
        self, tools: Sequence[Any], choice: Any, form: Mapping[str, Any] | None, grammar: Any
    ) -> None:
        functions = [tool["function"] for tool in tools]
        left, self.name = tools_left(functions, choice if functions else None)
        self.functions = {each["name"]: each.get("parameters") for each in left}
        self.form, self.grammar = form, grammar


class ContentAnswer:
    """An answer that is all content, or the arguments of the one required function, as in llama-cpp-python."""

    def __init__(self, shape: _Shape, stop: Sequence[str]) -> None:
        self.stop = list(stop)
        self._call = shape.name if shape.name in shape.functions else None
        content = format_language(shape.form)
        if self._call is not None:
            content = Language(held(tool_schema(shape.functions[self._call])))
        self.grammar = shape.grammar if content is None else Constraint(content)

    def hearing(self, llama: Any) -> AbstractContextManager[None]:
        """Return the context in which to start the completion."""
        return nullcontext()

    def chat(self, made: Any, *, stream: bool) -> Any:
        """Convert a completion, or its chunks, to the chat format."""
        if self._call is not None:
            convert = llama_chat_format._convert_completion_to_chat_function  # noqa: SLF001
            return convert(self._call, made, stream)
        return llama_chat_format._convert_completion_to_chat(made, stream=stream)  # noqa: SLF001


class PartsAnswer:
    """An answer of a `SpeculativeLlama`, read token by token while llama-cpp-python's own loop runs.

    stop: strings that end the content. legacy: whether tools were given in OpenAI's older form, as functions.
    """

    def __init__(
        self, llama: Any, prompt: list[int], shape: _Shape, stop: Sequence[str], *, legacy: bool
    ) -> None:
        self.stop: list[str] = []
        self._legacy = legacy
        self._reader = llama.speech.reader(
            prompt,
            stop,
            functions=shape.functions,
            name=uuid.uuid4().hex,
            forced=shape.name is not None,
        )
        self._heard: list[AnswerPart] = []
        content = format_language(shape.form)
        if content is None and shape.grammar is not None:
            content = constraint_of(shape.grammar).language
        self.grammar = llama.speech.shape(prompt, content, shape.functions, shape.name)

    def hearing(self, llama: Any) -> AbstractContextManager[None]:
        """Return the context in which to start the completion, so that its tokens are reported."""
        context: AbstractContextManager[None] = llama.binding(on_token=self._on_token)
        return context

    def _on_token(self, token: int) -> bool:
        """Take a token and return whether the answer ends with it."""
        self._heard += self._reader.push([token])
        return bool(self._reader.done)

    def chat(self, made: Any, *, stream: bool) -> Any:
        """Convert a completion, or its chunks, to the chat format, with the parts read so far."""
        chat = llama_chat_format._convert_completion_to_chat(made, stream=stream)  # noqa: SLF001
        return self._chunks(chat) if stream else self._whole(chat)

    def _whole(self, chat: Any) -> Any:
        choice = chat["choices"][0]
        answer = Result.of(self._heard + self._reader.finish())
        choice["message"] = answer.message()
        if self._legacy and answer.calls:
            choice["message"]["function_call"] = answer.calls[0]["function"]
        choice |= self._end(choice["finish_reason"])
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
