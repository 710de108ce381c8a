"""Chats of a plain `llama_cpp.Llama` by our template: the reference of what `SpeculativeLlama` answers."""

from inspect import signature
from typing import Any

from llama_cpp import Llama, LogitsProcessorList
from llama_cpp import llama_chat_format as formats

from pyspec.grammar.languages import Constraint
from pyspec.grammar.masks import MaskProcessor, Masks
from pyspec.text.completions import format_language


def handler(
    *, llama: Any, messages: Any, response_format: Any, stop: Any, stream: bool, **options: Any
) -> Any:  # fmt: skip
    """A chat handler whose answers llama-cpp-python makes and formats itself."""
    known = signature(Llama.create_completion).parameters
    options = {name: each for name, each in options.items() if name in known}
    language = format_language(response_format)
    if language is not None:
        masks = MaskProcessor(Masks(Constraint(language), llama))
        options["logits_processor"] = LogitsProcessorList([masks])
    made = llama.create_completion(
        prompt=llama.template.prompt(messages),
        stop=[*stop, *llama.template.stop],
        stream=stream,
        **{**options, "logprobs": None},
    )
    return formats._convert_completion_to_chat(made, stream=stream)
