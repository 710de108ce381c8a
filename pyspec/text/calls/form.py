"""The interface of all forms of calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pyspec.text.parts import Calls
from pyspec.text.scan import Scan, Scanner


class CallForm(ABC):
    """How a family of models writes calls."""

    short_ids: bool = False
    """See `Calls`."""
    unmarked: bool = False
    """Whether an answer may begin with a call, or a part of one, without a mark."""

    @property
    @abstractmethod
    def opens(self) -> tuple[str, ...]:
        """The marks that begin calls."""

    @property
    @abstractmethod
    def marks(self) -> tuple[str, ...]:
        """All marks; they must be shown even if they are control tokens."""

    @abstractmethod
    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read the calls after one of `opens`, with their closing mark. Return False at anything else, which is content."""

    def spoken(self, functions: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """Return calls as the model writes them: a mark, a text, and so on in turn. None if the form is only read.

        functions: the name and the arguments of each.
        """
        return None

    def begin(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read a call at the beginning of an answer; return False at anything else."""
        yield from ()
        return False
