"""One child renders all templates of these tests: to start one and to compile its template takes 0.3 s each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from pyspec.text.render import Renderer


class View:
    """A renderer of a template's own in the child of all: the same source with the same variables is compiled once."""

    def __init__(self, child: Renderer, names: dict[str, str]) -> None:
        self._child, self._names = child, names
        self._own: dict[str, str] = {}

    def start(self) -> None:
        """It starts with the first rendering."""

    def add(self, name: str, source: str, variables: Mapping[str, str]) -> None:
        key = repr((source, sorted(variables.items())))
        if key not in self._names:
            self._names[key] = f"{len(self._names)}"
            self._child.add(self._names[key], source, variables)
        self._own[name] = self._names[key]

    def render(self, name: str, arguments: Mapping[str, Any], now: float | None = None) -> str:
        return self._child.render(self._own[name], arguments, now)

    def close(self) -> None:
        """The child stays for the others."""


@pytest.fixture(scope="session")
def shared_renderer() -> Iterator[Callable[[], Any]]:
    child, names = Renderer(), dict[str, str]()
    yield lambda: View(child, names)
    child.close()
