"""What all forms of calls have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pyspec.text.parts import Calls
from pyspec.text.scan import Scan, Scanner


class CallForm(ABC):
    """How a family of models writes calls.

    short_ids: see `Calls`. unmarked: whether an answer may begin with a call, or with what belongs to one, without a mark.
    """

    short_ids: bool = False
    unmarked: bool = False

    @property
    @abstractmethod
    def opens(self) -> tuple[str, ...]:
        """The marks with which calls begin."""

    @property
    @abstractmethod
    def marks(self) -> tuple[str, ...]:
        """All marks, which have to be seen where they are control tokens."""

    @abstractmethod
    def read(self, s: Scanner, calls: Calls, mark: str) -> Scan[bool]:
        """Read the calls behind one of `opens`, its closing mark too; False at what is no call, which then is content."""

    def begin(self, s: Scanner, calls: Calls) -> Scan[bool]:
        """Read a call at an answer's beginning; False at what is none."""
        yield from ()
        return False
