"""What every chat template that llama.cpp's source brings writes of reasoning and calls is read back as what it is."""

import json

from helpers import sdist

from pyspec.errors import InputError, TemplateError
from pyspec.text.notation import Notation
from pyspec.text.parser import AnswerParser
from pyspec.text.parts import Result, common_prefix

TYPES = {
    "city": ("string", "Its name."),
    "days": ("integer", "How many."),
    "more": ("object", "What else."),
}
PROPERTIES = {name: {"type": kind, "description": what} for name, (kind, what) in TYPES.items()}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city.", "parameters": PARAMETERS}
ARGUMENTS = {"city": "Köln", "days": 3, "more": {"k": [1, True, 'a "b"']}}
THOUGHT = "They ask for the weather."

UNREAD = {
    "GigaChat3-10B-A1.8B": "a call is a turn of another speaker",
    "Kimi-K3": "tags with attributes between marks",
    "MiniMax-M3": "nested tags for values",
    "meetkai-functionary-medium-v3.1": "objects between tags with a name",
    "meetkai-functionary-medium-v3.2": "a turn for each recipient",
    "muse-glimmer": "a turn for each function",
}
"""Templates whose calls stay content, and how they write them."""


def written(renderer, name, source, turn):
    """A prompt as the template writes it, and the turn of the model behind it."""
    renderer.add(name, source, {"bos_token": "<s>", "eos_token": "</s>"})
    asked = {"tools": [{"type": "function", "function": FUNCTION}], "enable_thinking": True}
    user = {"role": "user", "content": "How is the weather?"}
    before = {"messages": [user], "add_generation_prompt": True, **asked}
    after = {"messages": [user, turn], "add_generation_prompt": False, **asked}
    prompt, text = (renderer.render(name, each, 0.0) for each in (before, after))
    at = common_prefix(prompt, text)
    # where it begins reasoning that this turn has not, the answer is all behind the speaker's name
    if at < len(prompt) and "<" in prompt[at - 2 : at]:
        at = max(text.rfind("<", 0, at), 0)
    return text[:at], text[at:]


def forms():
    """A turn with reasoning and a call, in the forms that templates are written for."""
    for content in ("", None):
        for arguments in (ARGUMENTS, json.dumps(ARGUMENTS, ensure_ascii=False)):
            function = {"name": "get_weather", "arguments": arguments}
            call = {"id": "abcdef123", "type": "function", "function": function}
            thought = {"reasoning_content": THOUGHT, "thinking": THOUGHT}
            yield {"role": "assistant", "content": content, "tool_calls": [call], **thought}


def read(source, prompt, text):
    """What an answer has that reads as the template wrote it."""
    notation = Notation.of(source)
    inside = notation.start(prompt) == "inside"
    parser = AnswerParser(notation, inside=inside, functions={"get_weather": PARAMETERS})
    return Result.of(parser.push(text) + parser.finish())


def test_calls_and_reasoning_are_read_as_they_are_written(shared_renderer):
    renderer = shared_renderer()
    calls, thoughts = dict.fromkeys(sdist.templates(), None), dict.fromkeys(sdist.templates(), None)
    for name, source in sdist.templates().items():
        for turn in forms():
            try:
                prompt, text = written(renderer, name, source, turn)
            except (InputError, TemplateError):  # not a form of its own
                continue
            answer = read(source, prompt, text)
            if "get_weather" in text and "K\u00f6ln" in text and "'city'" not in text:
                found = [json.loads(c["function"]["arguments"]) for c in answer.calls] == [
                    ARGUMENTS
                ]
                calls[name] = calls[name] or found
            if THOUGHT in text:
                thoughts[name] = thoughts[name] or answer.reasoning == THOUGHT
    unread = [
        {name for name, found in each.items() if found is False} for each in (calls, thoughts)
    ]
    assert unread[0] == UNREAD.keys()
    assert unread[1] <= {"muse-glimmer", "Apriel-1.6-15b-Thinker-fixed"}
    counts = [sum(found is True for found in each.values()) for each in (calls, thoughts)]
    assert counts == [52, 28]
