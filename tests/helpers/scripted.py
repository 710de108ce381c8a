"""Tiny models whose template is of a family, and answers that a grammar makes them say."""

import json
from pathlib import Path
from zlib import crc32

from helpers import tiny

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


THINKS = (
    "{% if add_generation_prompt %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
"""Begins reasoning in the prompt, or ends it there where none is wanted."""


DIGIT = {
    "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"],
    "additionalProperties": False,
}  # fmt: skip
"""The schema of a tool's arguments."""


def call(name: str, **arguments: object) -> str:
    """How models that speak Hermes call a tool."""
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


CALL = call("add", n=1)


def write(folder: Path, *marks: str, behind: str = "") -> Path:
    """A model that speaks ASCII, and in whose template these marks are. behind: what else the template writes.

    It lies beside `folder`, once for all tests, and is not to be changed: the first load of a file tries it in a child.
    """
    template = CHATML + behind + "".join(f"{{# {mark} #}}" for mark in marks)
    path = folder.parent / f"scripted-{crc32(template.encode()):08x}" / "scripted.gguf"
    if path.exists():
        return path
    path.parent.mkdir()
    return tiny.write(path, tokens=tiny.ASCII, template=template)


def script(text: str) -> str:
    return f"root ::= {json.dumps(text)}"


def prompt(text: str) -> str:
    """What such a model is asked where a user says this."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def leaning(char: str) -> dict[int, float]:
    """A logit bias with which the model writes this character wherever it may."""
    return {tiny.ASCII.index(char): 99.0}


def _call(n):
    function = {"name": "add", "arguments": f'{{"n": {n}}}'}
    return {"id": f"c{n}", "type": "function", "function": function}


ADDED = [
    {"role": "user", "content": "one and one?"},
    {"role": "assistant", "reasoning_content": "Hm.", "content": "I add.", "tool_calls": [_call(1), _call(2)]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "tool", "tool_call_id": "c2", "content": "3"},
]  # fmt: skip
"""A conversation with reasoning, two calls and their results, as a chat has it."""
