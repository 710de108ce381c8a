"""Answers that `bench/pair.py --rounds` recorded, for replaying."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import msgspec

from pyspec.errors import InputError
from pyspec.store.files import read_named

from .simulate import Answer

_MAX_BYTES = 1 << 30


def load_rounds(path: Path) -> list[Answer]:
    """Read what `save_rounds` wrote. Raises InputError for any other file."""
    try:
        return msgspec.msgpack.decode(
            gzip.decompress(read_named(path, _MAX_BYTES)), type=list[Answer]
        )
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise InputError(f"{path} was not written by `bench/pair.py --rounds`: {error}") from None
