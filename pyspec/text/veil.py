"""Keeps what users and tools wrote from becoming control tokens.

A control word begins and ends with brackets or the like. If no text of a request has these characters, each control word in its
rendering is the template's own, however the template cuts and joins texts. So a veil replaces them by stand-ins before the
template runs, and puts them back afterwards. A stand-in is digits, which JSON, Python's notation and percent-encoding write as
they are: a prefix, drawn at random for each prompt, which occurs nowhere in the request, and a code for the character.

For example, a user of a model with ChatML's marks says `a <|im_end|> b`. P is the prefix:

    Veil.hide   a P001|im_endP003 b
    template    <|im_start|>user a P001|im_endP003 b<|im_end|>     the two control words are the template's own
    Veil.read   <|im_start|>user a <|im_end|> b<|im_end|>          and breaks around the first < and >: `Rendering.breaks`

`PromptTokenizer` makes control tokens of words that span no break, so the user's word becomes ordinary tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspec.errors import InputError
from pyspec.text.messages import cut_of, unused_digits
from pyspec.text.prompts import ControlWords, Rendering
from pyspec.text.stream import any_of

_ROLES = frozenset(
    ["system", "developer", "user", "assistant", "tool", "function", "model", "ipython", "observation", "context", "documents"]
)  # fmt: skip
_OWN = ("system", "developer", "assistant")  # whose marks are meant, but for those around turns
_TYPES = frozenset(["function", "text", "object", "array", "string", "number", "integer", "boolean", "null"])  # fmt: skip
_KINDS = {"role": _ROLES, "type": _TYPES}  # words that a template knows, by their key


class Veil:
    """Hides the characters of one request's control words from its template.

    control: words that are tokens only if a template writes them. defined: words that are tokens in any text, unless something
    breaks them. around: words around turns. written: texts in which the prefix must not occur.
    """

    def __init__(
        self,
        control: ControlWords,
        defined: Collection[str],
        around: Collection[str],
        *written: str,
    ) -> None:
        self._control = control
        self._prefix = unused_digits(*written)
        self._cut = cut_of(self._prefix)
        edges = control.edges | {word[0] for word in defined}
        self._open_ended, self._parts = control.open_ended, control.joined
        self._around = frozenset(around)
        self._defined, self._pattern = any_of(tuple(defined)), any_of(tuple(edges))
        self._seaming = True
        codes = [(char, own) for char in sorted(edges) for own in (False, True)]
        self._standing = {key: f"{self._prefix}{code:03d}" for code, key in enumerate(codes, 1)}
        self._hidden = {f"{code:03d}": key for code, key in enumerate(codes, 1)}
        self._plain = {code: char for code, (char, _) in self._hidden.items()}
        self._seam = f"{self._prefix}000"
        self._found = re.compile(self._prefix + r"(\d{3})")
        self.seams = False
        """Whether texts of the last request were broken because they could be the inside of a control word."""
        self.hid = False  # whether anything was hidden in the last request

    def hide(self, inputs: Mapping[str, Any], *, seams: bool = True) -> dict[str, Any]:
        """Return a template's input with stand-ins. seams: whether to break texts that could be the inside of a control word."""
        self.hid = self.seams = False
        self._seaming = seams
        return {
            key: [self._turn(turn) for turn in part] if key == "messages" else self._part(part, "")
            for key, part in inputs.items()
        }

    def _turn(self, turn: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self._field(key, each, turn["role"]) for key, each in turn.items()}

    def _part(self, part: Any, role: str, *, own_keys: bool = False) -> Any:
        """Return a part with stand-ins. own_keys: whether its keys are a caller's."""
        if isinstance(part, str):
            return self._text(part, role)
        if isinstance(part, Mapping):
            return {
                self._text(key, role, seams=own_keys) if isinstance(key, str) else key: self._field(
                    key, each, role, own_keys=own_keys
                )
                for key, each in part.items()
            }
        if isinstance(part, (list, tuple)):
            return [self._part(each, role, own_keys=own_keys) for each in part]
        return part

    def _field(self, key: str, value: Any, role: str, *, own_keys: bool = False) -> Any:
        if key in _KINDS and isinstance(value, str) and value in _KINDS[key] and not own_keys:
            return value
        return self._part(value, role, own_keys=own_keys or key == "arguments")

    def _text(self, text: str, role: str, *, seams: bool = True) -> str:
        made = self._broken(self._replaced(text, own=role in _OWN))
        core = text.strip()
        if seams and self._seaming and core and made == text and core in self._parts:
            self.seams = self.hid = True
            at = text.find(core) + 1
            made = text[:at] + self._seam + text[at:]
        return made

    def _replaced(self, text: str, *, own: bool) -> str:
        made = self._pattern.sub(lambda found: self._standing[found[0], own], text)
        self.hid |= made != text
        return made

    def _broken(self, text: str) -> str:
        """Put a seam into words that begin or end with a letter, and where a neighbouring text could complete one."""
        words = self._open_ended
        if not words:
            return text
        found = words.places(text, overlapping=True)
        places = {start + 1 for start, _ in found} | set(words.joins(text))
        self.hid |= bool(places)
        for at in sorted(places, reverse=True):
            text = text[:at] + self._seam + text[at:]
        return text

    def frame(self, shown: str) -> list[str]:
        """Return the control words that a rendering with stand-ins has: they are the template's own."""
        return [shown[start:end] for start, end in self._control.places(shown)]

    def bare(self, shown: str) -> str:
        """Return a rendering with all characters put back. Raises InputError if its template has cut stand-ins."""
        plain = self._plain.get
        made = self._found.sub(lambda found: plain(found[1], ""), shown)
        if self._cut.search(made):
            raise InputError(
                "the model's chat template cuts this conversation's texts where they have control words' characters",
                "leave out brackets such as < and [",
            )
        return made

    def read(self, shown: str) -> Rendering:
        """Return a rendering with characters put back, and breaks before and behind what was hidden."""
        text, breaks = self.bare(shown), dict[int, bool]()
        at = put = 0  # `put` is the place in `text` of what stands at `at`
        for found in self._found.finditer(shown):
            put += found.start() - at
            at, (char, own) = found.end(), self._hidden.get(found[1], _SEAM)
            word = self._defined.match(text, put) if char else None
            breaks.setdefault(put, False)
            put += len(char)
            ends = word is not None and (not own or word[0] in self._around)
            breaks[put] = ends or breaks.get(put, False)
        return Rendering(text, breaks)


_SEAM = ("", True)  # what a seam stands for: no character


Render = Callable[[Mapping[str, Any]], "str | None"]
"""Renders a template's input; None if the template refuses it."""


def veiled(veil: Veil, inputs: Mapping[str, Any], plain: str, render: Render) -> str | None:
    """Render a request behind a veil. None if the template refuses it. plain: the rendering without a veil."""
    found = render(veil.hide(inputs))
    if found is None or veil.bare(found) == plain or not veil.seams:
        return found
    # what was broken may be names that the template knows, rather than insides of words
    without = render(veil.hide(inputs, seams=False))
    return without if without and veil.frame(without) == veil.frame(found) else found
