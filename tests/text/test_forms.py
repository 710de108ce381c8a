"""Whether a template writes everything is a matter of structure: no words in a conversation decide it."""

from typing import Any

import pytest
from text.conftest import user

from pyspec.text.forms import probe_of

IGNORES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def tool(name, description):
    function = {"name": name, "parameters": {"type": "object", "properties": {}}}
    told = {"description": description} if description else {}
    return {"type": "function", "function": {**function, **told}}


@pytest.mark.parametrize(("name", "description", "turns"), [
    ("get_time", "Get the time", [user("Get the time in Rome.")]),
    ("get_time", None, [user("Please call get_time.")]),
    ("u", None, [user("Hello.")]),
    ("get_time", "Time.", [{"role": "system", "content": "get_time: Time."}, user("Hello.")]),
])  # fmt: skip
def test_tools_are_in_the_prompt_whatever_else_is(name, description, turns, made):
    text = made(IGNORES).template.render(turns, tools=[tool(name, description)])
    assert f'"name": "{name}"' in text


def test_long_conversations_have_short_probes():
    pair = [user("a"), {"role": "assistant", "content": "b"}]
    asked: dict[str, Any] = {"messages": [*(pair * 50), user("c")], "tools": None}
    roles = [turn["role"] for turn in probe_of(asked)["messages"]]
    assert roles == ["user", "assistant"] * 2 + ["user"]
