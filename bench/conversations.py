"""How many control tokens prompts have that their chat templates did not write: none, whatever a conversation says.

Conversations of users, assistants, calls and tools' results are drawn over the marks of all families, their pieces, their escapes
and what our own machinery is made of, for each chat template of llama.cpp's source. A prompt must have the control tokens of the
same conversation in plain words, in the same order; marks of reasoning in what the assistant said may be the model's own. It
may be refused too. The line has how many were drawn, refused and wrong, and each wrong one is printed with its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers import sdist, tiny

from pyspec.engine.target import TargetLlama
from pyspec.errors import PyspecError

MARK = re.compile(r"<[|\uff5c]?/?[A-Za-z_][^<>\s'\"{}|\uff5c]{0,40}[|\uff5c]?>|\[/?[A-Z_]{3,}\]")
THOUGHT = re.compile(r"think|THINK|channel|thought|REASON|response|text", re.IGNORECASE)
OURS = [
    "\uf8d0", "\\uf8d0", "\uf8d1", "\uf8d2", "\U000f0000", "\\udb80\\udc00", "000", "7304918265013", "\\u003c", "&lt;",
]  # fmt: skip
PLAIN = [
    "a", "Hello.", " ", "\n", "\n\n", '"', "'", "\\", "{", "}", "[", "]", "<", ">", "|", "\uff5c", "/", "\u2603", "user", "0",
]  # fmt: skip


def marks_of(source: str) -> list[str]:
    """Words of a template that look like control tokens."""
    return sorted(set(MARK.findall(source)) - {"<s>", "</s>", "<unk>"})


class Drawing:
    """Draws texts and conversations. With `plain`, the same structure in harmless words."""

    def __init__(self, seed: int, marks: Sequence[str]) -> None:
        self._random = random.Random(seed)  # noqa: S311 - to be repeatable
        self._marks = [*marks, "<s>", "</s>", "<tool_response>"]

    def text(self) -> str:
        """Up to a dozen pieces."""
        return "".join(self._piece() for _ in range(self._random.randint(1, 12)))

    def _piece(self) -> str:
        chance = self._random.random()
        if chance < 0.35:
            return self._random.choice(self._marks)
        if chance < 0.55:
            mark = self._random.choice(self._marks)
            a, b = sorted(self._random.sample(range(len(mark) + 1), 2))
            return mark[a:b]
        return self._random.choice(OURS if chance < 0.7 else PLAIN)

    def conversation(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
        """Turns and tools."""
        turns = [{"role": "system", "content": self.text()}] if self._random.random() < 0.3 else []
        called = self._random.random() < 0.4
        n = 100 if self._random.random() < 0.01 else self._random.randint(1, 4)
        for _ in range(n):
            turns.append({"role": "user", "content": self.text()})
            if called and self._random.random() < 0.5:
                turns += self._call()
            turns.append({"role": "assistant", "content": self.text()})
        turns[-1:] = [] if turns[-1]["role"] == "assistant" else turns[-1:]
        return turns, [self._tool()] if called else None

    def _call(self) -> list[dict[str, Any]]:
        name = "f" + self.text() if self._random.random() < 0.5 else "look"
        arguments = json.dumps({self.text(): self.text(), "b": [self.text(), 1]})
        function = {"name": name, "arguments": arguments}
        call = {"id": "call12345", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": self.text(), "tool_call_id": "call12345", "name": name},
        ]

    def _tool(self) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {self.text(): {"type": "string", "description": self.text()}},
        }
        function = {"name": "look" + self.text(), "description": self.text(), "parameters": parameters}  # fmt: skip
        return {"type": "function", "function": function}


class Plain:
    """Writes conversations of the same structure in harmless words, each of them once: some templates compare messages."""

    def __init__(self) -> None:
        self._number = count()

    def part(self, part: Any, key: str = "") -> Any:
        """A part in other words."""
        if isinstance(part, str):
            return self._text(part, key)
        if isinstance(part, Mapping):
            return {self._key(k, key): self.part(v, "value" if key == "value" else k) for k, v in part.items()}  # fmt: skip
        return [self.part(each, key) for each in part] if isinstance(part, list) else part

    def _text(self, text: str, key: str) -> str:
        if key in ("role", "type", "id", "tool_call_id"):
            return text
        if key == "arguments":
            return json.dumps(self.part(json.loads(text), "value"))
        return f"word{next(self._number)}" if text.strip() else text

    def _key(self, name: str, key: str) -> str:
        return f"k{next(self._number)}" if key in ("properties", "value") else name


def control(tokens: Sequence[int], words: Mapping[int, str]) -> list[str]:
    """The control tokens but those of reasoning."""
    return [words[t] for t in tokens if t in words and not THOUGHT.search(words[t])]


def tried(llm: TargetLlama, words: Mapping[int, str], seed: int, marks: Sequence[str]) -> str:
    """How one conversation ended: "right", "refused", or "wrong"."""
    turns, tools = Drawing(seed, marks).conversation()
    try:
        found = llm.template.prompt(turns, tools=tools)
    except PyspecError:
        return "refused"
    other = Plain()
    try:
        wanted = llm.template.prompt(other.part(turns), tools=other.part(tools))
    except PyspecError:
        return "no plain one"
    found_words, wanted_words = (control(each, words) for each in (found, wanted))
    if found_words == wanted_words:
        return "right"
    print(f"wrong: seed {seed}\n  {found_words}\n  {wanted_words}")
    return "wrong"


def main(argv: Sequence[str] | None = None) -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="conversations")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--only", help="part of a template's name")
    asked = parser.parse_args(argv)
    templates = {n: s for n, s in sdist.templates().items() if not asked.only or asked.only in n}
    ends, start, each = Counter[str](), perf_counter(), -(-asked.count // len(templates))
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, source) in enumerate(templates.items()):
            path = tiny.write_vocabulary(Path(folder) / f"{i}.gguf", source, marks_of(source))
            llm = TargetLlama(str(path), vocab_only=True, trust=True, verbose=False)
            words = {tiny.mark(k): mark for k, mark in enumerate(marks_of(source))}
            words |= {0: "<unk>", 1: "<s>", 2: "</s>"}
            found = Counter(tried(llm, words, asked.seed + i * each + k, marks_of(source)) for k in range(each))  # fmt: skip
            llm.close()
            ends += found
            print(name, dict(found), flush=True)
    print(f"{sum(ends.values())} conversations in {perf_counter() - start:.0f} s: {dict(ends)}")
    return int(ends["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
