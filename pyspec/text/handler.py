"""A chat template under the name that llama-cpp-python has for such: a chat handler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format

from pyspec.text.completions import ChatCompletion, needs_telling_apart
from pyspec.text.forms import from_outside
from pyspec.text.template import ChatTemplate


def chat_handler(template: ChatTemplate, text_of: Callable[[int], str], eos: int) -> Any:
    """A chat handler of llama-cpp-python's kind, whose prompts are the template's tokens."""
    eos_text = text_of(eos) if eos >= 0 else ""
    ends = llama_cpp.StoppingCriteriaList([lambda tokens, _: tokens[-1] == eos])
    stop = [*filter(None, [eos_text]), *template.stop]

    def answer(
        *,
        llama: Any,
        messages: Any,
        tools: Any = None,
        chat_template_kwargs: Any = None,
        **rest: Any,
    ) -> Any:
        told = tools or [
            {"type": "function", "function": each} for each in rest.get("functions") or ()
        ]
        if rest.get("tool_choice") == "none" or rest.get("function_call") == "none":
            told = None
        arguments = chat_template_kwargs or llama.in_chat.args
        tokens = template.prompt(from_outside(messages), tools=told, arguments=arguments)
        if needs_telling_apart(llama, told):
            return _told_apart(llama, tokens, told, template.stop, rest)
        response = llama_chat_format.ChatFormatterResponse(
            prompt="", stop=stop, stopping_criteria=ends, added_special=True
        )
        complete = llama_chat_format.chat_formatter_to_chat_completion_handler(lambda **_: response)
        prompted = _PromptedLlama(llama, tokens)
        return complete(llama=prompted, messages=messages, tools=tools, **rest)

    return answer


def _told_apart(
    llama: Any, tokens: list[int], tools: Any, stop: Sequence[str], asked: dict[str, Any]
) -> Any:
    """An answer with reasoning and calls beside its content. asked: what the call says of it."""
    functions, choice = asked.pop("functions", None), asked.pop("tool_choice", None)
    given, top = asked.pop("stop", None), asked.pop("top_logprobs", None)
    named = asked.pop("function_call", None) or choice
    if isinstance(named, dict):
        named = (named.get("function") or named).get("name")
    logprobs = top if asked.pop("logprobs", None) else None
    completion = ChatCompletion(
        llama, tokens, tools or (), None if named in ("auto", "none") else named,
        [*([given] if isinstance(given, str) else given or ()), *stop], legacy=bool(functions),
    )  # fmt: skip
    return completion.run(**asked, logprobs=logprobs)


class _PromptedLlama:
    """A model as a chat handler sees it: its prompt has been made already."""

    def __init__(self, llama: Any, tokens: list[int]) -> None:
        self.verbose, self.create_completion = llama.verbose, llama.create_completion
        self._tokens = tokens

    def tokenize(self, _text: bytes, **_: Any) -> list[int]:
        """The prompt."""
        return self._tokens
