"""What measurements raise."""

from __future__ import annotations

from pyspec.errors import PyspecError


class MeasureError(PyspecError):
    """A measurement cannot be made, or is not valid."""


class PeerMissing(MeasureError):
    """A peer is not available and is skipped; the message says why."""


class UnequalOutputs(MeasureError):
    """Answers that must be equal differ, and decoding them again with the same rows does not reproduce the difference."""
