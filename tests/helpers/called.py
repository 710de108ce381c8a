"""What the written answers call: the functions there are, and some calls of them."""

from __future__ import annotations

from typing import Any

Example = tuple[str, str, str, list[tuple[str, dict[str, Any]]]]

FUNCTIONS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "hourly": {"type": "boolean"},
            "options": {"type": "object"},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
    "write_file": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
}  # fmt: skip

PARIS = ("weather", {"city": "Paris"})
ROME = ("weather", {"city": "Rome", "days": 3})
NOW: tuple[str, dict[str, Any]] = ("now", {})
DEEP = ("weather", {"city": "Köln", "options": {"k": [1, None, True], "s": 'a "b" {c}'}})
CODE = ("write_file", {"path": "a.py", "text": "if x < 3:\n    print('</b>')\n"})

DEEP_JSON = '{"city": "Köln", "options": {"k": [1, null, true], "s": "a \\"b\\" {c}"}}'
CODE_JSON = '{"path": "a.py", "text": "if x < 3:\\n    print(\'</b>\')\\n"}'
