"""Decodes pictures in a child process, so that a hostile file cannot attack this process through the decoder, which is C."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspec.errors import InputError, InputTooLong
from pyspec.store.isolate import PICTURE_SCRIPT, run_child

MAX_BYTES = 16 << 20
"""Most bytes of a picture's file."""

MAX_PIXELS = 1 << 25
"""Most pixels of a picture: 100 MB as RGB."""

_SECONDS = 30.0
_MEMORY = 8 << 30
# limit of the child's address space, most of which libraries reserve and never use
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# JPEG's markers of segments with the picture's size
_KINDS = "send a PNG, JPEG, GIF or BMP"


def decoded(data: bytes) -> tuple[int, int, bytearray]:
    """Return width, height and the RGB bytes of a picture. Raises InputError, or InputTooLong."""
    if len(data) > MAX_BYTES:
        raise InputTooLong(f"a picture has more than {MAX_BYTES} bytes", "make it smaller")
    width, height = size_of_picture(data)
    if width * height > MAX_PIXELS:
        raise InputTooLong(
            f"a picture of {width} by {height} has more than {MAX_PIXELS} pixels", "make it smaller"
        )
    with TemporaryDirectory(prefix="pyspec-picture-") as folder:
        source, out = Path(folder, "in"), Path(folder, "out")
        source.write_bytes(data)
        files = [str(source), str(out), str(_MEMORY)]
        child = run_child("picture", files, timeout=_SECONDS, script=PICTURE_SCRIPT)
        pixels = bytearray(out.read_bytes()) if child.ok else bytearray()
    if len(pixels) != 3 * width * height:
        raise InputError(f"a picture cannot be decoded: {child.reason or 'it is damaged'}", _KINDS)
    return width, height, pixels


def size_of_picture(data: bytes) -> tuple[int, int]:
    """Read width and height from a picture's header, in pixels. Raises InputError if it has none of a known format."""
    try:
        size = _size(data)
    except (struct.error, IndexError):
        size = None
    if size is None or min(size) < 1:
        raise InputError("a picture is of an unknown kind, or damaged", _KINDS)
    return size


def _size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", data, 16)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        width, height = struct.unpack_from("<HH", data, 6)
    elif data.startswith(b"BM"):
        width, height = struct.unpack_from("<ii", data, 18)
    elif data.startswith(b"\xff\xd8"):
        return _jpeg_size(data)
    else:
        return None
    return int(width), abs(int(height))


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        while data[at] != 0xFF or data[at + 1] in (0x00, 0xFF):
            at += 1
        kind, (length,) = data[at + 1], struct.unpack_from(">H", data, at + 2)
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return int(width), int(height)
        at += 2 + max(2, length)
