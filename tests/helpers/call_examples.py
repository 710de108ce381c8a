"""Ten written answers of each of eight families, and what is in them.

Each is (what it is, the answer, its content, its calls as (name, arguments)). The tools are those of `FUNCTIONS`.
"""

from __future__ import annotations

from helpers.call_examples_marked import DEEPSEEK, GPT_OSS, KIMI, MISTRAL
from helpers.called import CODE, DEEP, DEEP_JSON, NOW, PARIS, ROME, Example

HERMES: list[Example] = [
    ("one", '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    (
        "text before it",
        'Let me look.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "Let me look.", [PARIS],
    ),
    (
        "several",
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'),
        "", [PARIS, ROME],
    ),
    ("nested", f'<tool_call>{{"name": "weather", "arguments": {DEEP_JSON}}}</tool_call>', "", [DEEP]),
    ("text around it", 'Now: <tool_call>{"name": "now", "arguments": {}}</tool_call>\nDone.', "Now:Done.", [NOW]),
    (
        "arguments first", '<tool_call>\n{"arguments": {"city": "Rome", "days": 3}, "name": "weather"}\n</tool_call>',
        "", [ROME],
    ),
    ("without its last mark", '<tool_call>\n{"name": "now"}\n', "", [NOW]),
    (
        "cut in the arguments", 'So <tool_call>\n{"name": "weather", "arguments": {"city": "Par',
        'So <tool_call>\n{"name": "weather", "arguments": {"city": "Par', [],
    ),
    ("cut in the name", '<tool_call>\n{"name": "wea', '<tool_call>\n{"name": "wea', []),
    ("no JSON", "<tool_call>weather(Paris)</tool_call>", "<tool_call>weather(Paris)</tool_call>", []),
]  # fmt: skip

QWEN_CODER: list[Example] = [
    (
        "one", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "", [PARIS],
    ),
    (
        "text before it",
        "I will see.\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "I will see.", [PARIS],
    ),
    (
        "several",
        ("<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
        "<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
        "", [PARIS, ROME],
    ),
    (
        "nested",
        ("<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=options>\n"
        '{"k": [1, null, true], "s": "a \\"b\\" {c}"}\n</parameter>\n</function>\n</tool_call>'),
        "", [DEEP],
    ),
    (
        "lines of code",
        ("<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\nif x < 3:\n"
        "    print('</b>')\n\n</parameter>\n</function>\n</tool_call>"),
        "", [CODE],
    ),
    ("no arguments", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [NOW]),
    ("without the outer mark", "<function=now>\n</function>\nok", "ok", [NOW]),
    (
        "cut in a value", "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
        "<tool_call>\n<function=weather>\n<parameter=city>\nPar", [],
    ),
    (
        "cut between values", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n",
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n", [],
    ),
    ("no function", "A <tool_call> is a mark.", "A <tool_call> is a mark.", []),
]  # fmt: skip

GLM: list[Example] = [
    ("one", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>", "", [PARIS]),
    ("in one line", "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", "", [PARIS]),
    (
        "text before it",
        "Let me see.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        "Let me see.", [PARIS],
    ),
    (
        "several",
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>\n<tool_call>weather\n"
        "<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"),
        "", [PARIS, ROME],
    ),
    (
        "nested",
        ("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>options</arg_key>\n"
        '<arg_value>{"k": [1, null, true], "s": "a \\"b\\" {c}"}</arg_value>\n</tool_call>'),
        "", [DEEP],
    ),
    (
        "lines of code",
        ("<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a.py</arg_value>\n<arg_key>text</arg_key>\n"
        "<arg_value>if x < 3:\n    print('</b>')\n</arg_value>\n</tool_call>"),
        "", [CODE],
    ),
    ("no arguments", "<tool_call>now\n</tool_call>", "", [NOW]),
    (
        "cut in a value", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa", [],
    ),
    ("cut in a key", "<tool_call>weather\n<arg_key>ci", "<tool_call>weather\n<arg_key>ci", []),
    ("words behind the mark", "The <tool_call> mark\nbegins a call.", "The <tool_call> mark\nbegins a call.", []),
]  # fmt: skip

LLAMA: list[Example] = [
    ("one", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("behind the tag", '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "several",
        '{"name": "weather", "parameters": {"city": "Paris"}}; {"name": "weather", "parameters": {"city": "Rome", "days": 3}}',
        "", [PARIS, ROME],
    ),
    ("nested", f'{{"type": "function", "name": "weather", "parameters": {DEEP_JSON}}}', "", [DEEP]),
    ("text before the tag", 'I look it up.\n<|python_tag|>{"name": "now", "parameters": {}}', "I look it up.", [NOW]),
    ("built in", '<|python_tag|>weather.call(city="Rome", days=3)', "", [ROME]),
    ("cut", '{"name": "weather", "parameters": {"ci', '{"name": "weather", "parameters": {"ci', []),
    ("JSON that is an answer", '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', []),
    ("other JSON", '{"city": "Paris", "days": 3}', '{"city": "Paris", "days": 3}', []),
    ("words", 'Say {"name": "now"} to me.', 'Say {"name": "now"} to me.', []),
]  # fmt: skip


FAMILIES = {
    "HERMES": HERMES, "QWEN_CODER": QWEN_CODER, "GLM": GLM, "LLAMA": LLAMA, "MISTRAL": MISTRAL,
    "DEEPSEEK": DEEPSEEK, "KIMI": KIMI, "GPT_OSS": GPT_OSS,
}  # fmt: skip
