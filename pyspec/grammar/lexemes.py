"""Longer words for llguidance, where a grammar of single characters allows them.

llguidance takes a word as long as it can. Repeated characters may therefore be one word only where, after any beginning of a
text, what continues that word differs from all else that may come. This is looked up in the states of an automaton that takes
whatever the grammar takes, and more: behind a rule that has itself within it comes what follows any use of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from pyspec.errors import InputError

Ranges = tuple[tuple[int, int], ...]
"""Code points, from the first of each pair up to the second."""

_MAX_NODES = 10_000
_MAX_STEPS = 2_000_000
_LAST = 0x10FFFF
_PART = re.compile(
    r'(?P<part>"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/|<[^>]*>|[a-z]\w*)(?P<times>[*+?]|\{[\d,]*\})?|(?P<or>\|)'
)
_RANGE = re.compile(r"\\x\{(\w+)\}-\\x\{(\w+)\}")


@dataclass(frozen=True, eq=False)
class _Part:
    """A part of a rule's body, and how often it comes."""

    text: str
    times: str

    @property
    def names_rule(self) -> bool:
        return self.text[0].isalpha()

    @property
    def may_miss(self) -> bool:
        """Whether it may come no time."""
        return self.times in ("*", "?") or self.times.startswith("{0")


Body = list[list[_Part]]
"""Alternatives of a rule, each a sequence."""


def with_words(rules: Mapping[str, str], root: str) -> dict[str, str]:
    """Return rules of the same texts in which repeated characters are words, where this can be told."""
    bodies = {name: _body(text) for name, text in rules.items()}
    words = _Automaton(bodies, root).words()
    if not words:
        return dict(rules)

    def written(part: _Part) -> str:
        if part not in words:
            return part.text + part.times
        times = {"*": "+"}.get(part.times, part.times.replace("{0,", "{1,"))
        one = _pattern(_Part(part.text, ""), bodies)
        return f"/(?:{one}){times}/" + "?" * part.may_miss

    return {
        name: " | ".join(" ".join(map(written, way)) or '""' for way in body)
        for name, body in bodies.items()
    }


def _body(text: str) -> Body:
    ways: Body = [[]]
    for found in _PART.finditer(text):
        if found["or"]:
            ways.append([])
        else:
            ways[-1].append(_Part(found["part"], found["times"] or ""))
    return ways


def _ranges(text: str) -> Ranges:
    """The characters that a literal of one character or a class matches; none for an empty literal."""
    if text[0] == '"':
        char = json.loads(text)
        return ((ord(char), ord(char)),) if char else ()
    listed = tuple(sorted((int(a, 16), int(b, 16)) for a, b in _RANGE.findall(text)))
    if text[:3] not in ("/[^", "/(?"):
        return listed
    found, start = [], 0
    for first, last in listed:
        found.append((start, first - 1))
        start = max(start, last + 1)
    return tuple((a, b) for a, b in (*found, (start, _LAST)) if a <= b)


def _pattern(part: _Part, bodies: Mapping[str, Body]) -> str:
    """A regular expression of a part that is regular."""
    if part.names_rule:
        ways = ("".join(_pattern(each, bodies) for each in way) for way in bodies[part.text])
        return f"(?:{'|'.join(ways)}){part.times}"
    if part.text[0] == '"':
        return "".join(f"\\x{{{a:x}}}" for a, _ in _ranges(part.text)) + part.times
    return part.text[1:-1] + part.times


class _Automaton:
    """Nodes with edges; a node within a word knows it, and whether nothing of that has come."""

    def __init__(self, bodies: Mapping[str, Body], root: str) -> None:
        self._bodies, self._root = bodies, root
        self._empty: list[list[int]] = []
        self._edges: list[list[tuple[Ranges, int]]] = []
        self._word: list[_Part | None] = []
        self._first = set[int]()
        self._ends: dict[str, tuple[int, int]] = {}
        self._kinds: dict[str, tuple[bool, bool]] = {}
        self._recursive: dict[str, bool] = {}
        self._steps = 0

    def words(self) -> set[_Part]:
        """Return the parts that may be words."""
        try:
            start, _ = self._rule(self._root)
            bad = self._conflicts(self._closure([start]))
        except (InputError, RecursionError):
            return set()
        return {part for part in self._word if part is not None} - bad

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, word: _Part | None) -> int:
        if len(self._word) > _MAX_NODES:
            raise InputError("too much would have to be looked at")
        self._empty.append([])
        self._edges.append([])
        self._word.append(word)
        return len(self._word) - 1

    def _rule(self, name: str) -> tuple[int, int]:
        """The nodes at a rule's beginning and end."""
        if name not in self._ends:
            ends = self._ends[name] = self._node(None), self._node(None)
            self._add_body(name, *ends, None)
        return self._ends[name]

    def _add_body(self, name: str, start: int, end: int, word: _Part | None) -> None:
        for way in self._bodies[name]:
            at = start
            for part in way:
                following = self._node(word)
                self._add(part, at, following, word)
                at = following
            self._empty[at].append(end)

    def _add(self, part: _Part, start: int, end: int, word: _Part | None) -> None:
        """Add nodes and edges for a part between two nodes."""
        if word is None and part.times not in ("", "?") and self._is_regular(part):
            self._add_word(part, start, end)
        elif part.times in ("", "?"):
            self._add_one(part, start, end, word)
        else:  # as often as may be
            inner, after = self._node(word), self._node(word)
            self._empty[start].append(inner)
            self._add_one(part, inner, after, word)
            self._empty[after] += [inner, end]
        if part.may_miss:
            self._empty[start].append(end)

    def _add_word(self, part: _Part, start: int, end: int) -> None:
        """Add a word: its first round by itself, then the others."""
        first, after, again, behind = (self._node(part) for _ in range(4))
        self._empty[start].append(first)
        self._add_one(part, first, after, part)
        self._add_one(part, again, behind, part)
        self._empty[after] += [again, end]
        self._empty[behind] += [again, end]
        self._first |= self._closure([first])

    def _add_one(self, part: _Part, start: int, end: int, word: _Part | None) -> None:
        if part.names_rule and (word is not None or not self._has_itself(part.text)):
            self._add_body(part.text, start, end, word)
        elif part.names_rule:
            first, last = self._rule(part.text)
            self._empty[start].append(first)
            self._empty[last].append(end)
        elif part.text[0] == "<" or part.text == '""':
            self._empty[start].append(end)
        else:
            self._edges[start].append((_ranges(part.text), end))

    def _has_itself(self, name: str) -> bool:
        """Whether a rule names itself, or another that does."""
        if name not in self._recursive:
            self._recursive[name] = True  # as long as it is looked at
            named = {each.text for way in self._bodies[name] for each in way if each.names_rule}
            self._recursive[name] = any(self._has_itself(each) for each in named)
        return self._recursive[name]

    def _is_regular(self, part: _Part) -> bool:
        """Whether a part without its repetition is regular and never empty."""
        if not part.names_rule:
            return part.text[0] != "<" and part.text != '""'
        regular, empty = self._kind(part.text, ())
        return regular and not empty

    def _kind(self, name: str, above: tuple[str, ...]) -> tuple[bool, bool]:
        """Whether a rule is regular as it is written, and whether it may be empty."""
        if name in above:
            return False, True
        if name not in self._kinds:
            ways = [
                [self._kind_of(part, (*above, name)) for part in way] for way in self._bodies[name]
            ]
            regular = all(each for way in ways for each, _ in way)
            self._kinds[name] = regular, any(all(empty for _, empty in way) for way in ways)
        return self._kinds[name]

    def _kind_of(self, part: _Part, above: tuple[str, ...]) -> tuple[bool, bool]:
        if not part.names_rule:
            return part.text[0] != "<", part.may_miss or part.text == '""'
        regular, empty = self._kind(part.text, above)
        return regular, empty or part.may_miss

    # -- states --------------------------------------------------------------------------------------------------------

    def _closure(self, nodes: Sequence[int]) -> frozenset[int]:
        found, left = set(nodes), list(nodes)
        while left:
            for node in self._empty[left.pop()]:
                if node not in found:
                    found.add(node)
                    left.append(node)
        return frozenset(found)

    def _conflicts(self, start: frozenset[int]) -> set[_Part]:
        """The words that something else could be taken for."""
        bad, seen, left = set[_Part](), {start}, [start]
        while left:
            state = left.pop()
            self._step(len(state))
            bad |= self._confused(state)
            for nodes in self._moves(state):
                following = self._closure(nodes)
                if following not in seen:
                    seen.add(following)
                    left.append(following)
        return bad

    def _step(self, n: int) -> None:
        self._steps += n
        if self._steps > _MAX_STEPS:
            raise InputError("too much would have to be looked at")

    def _confused(self, state: frozenset[int]) -> set[_Part]:
        by_kind: dict[tuple[_Part | None, bool], list[tuple[int, int]]] = {}
        for node in state:
            for ranges, _ in self._edges[node]:
                by_kind.setdefault((self._word[node], node in self._first), []).extend(ranges)
        found = set[_Part]()
        for (a, these), (b, those) in combinations(by_kind.items(), 2):
            self._step(len(these) * len(those))
            if (a[0] or b[0]) and _overlap(these, those):
                found |= {word for word, _ in (a, b) if word is not None}
        return found

    def _moves(self, state: frozenset[int]) -> Iterator[tuple[int, ...]]:
        """The nodes behind each kind of character."""
        edges = [
            (pair, to) for node in state for ranges, to in self._edges[node] for pair in ranges
        ]
        cuts = {cut for (a, b), _ in edges for cut in (a, b + 1)}
        self._step(len(edges) * len(cuts))
        yield from {tuple({to for (a, b), to in edges if a <= cut <= b}) for cut in cuts} - {()}


def _overlap(these: Sequence[tuple[int, int]], those: Sequence[tuple[int, int]]) -> bool:
    return any(a <= d and c <= b for a, b in these for c, d in those)
