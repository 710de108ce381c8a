"""What measurements raise.

PyspecError
└── MeasureError             a measurement cannot be made, or is not valid
    ├── PeerMissing          a peer is not here, and is skipped
    └── UnequalOutputs       answers that must be equal differ
"""

from __future__ import annotations

from pyspec.errors import PyspecError


class MeasureError(PyspecError):
    """A measurement cannot be made, or is not valid."""


class PeerMissing(MeasureError):
    """A peer is not available and is skipped; the message says why."""


class UnequalOutputs(MeasureError):
    """Answers that must be equal differ, and decoding them again with the same rows does not reproduce the difference."""
