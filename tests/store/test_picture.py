"""Pictures of strangers: what is decoded, what is refused, and that nothing ends this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import tiny, tiny_mmproj
from helpers.tiny_mmproj import png

from pyspec.engine.pictures import Projector
from pyspec.errors import InputError, InputTooLong, ModelInvalid, ModelRejected
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.store.check import check_projector
from pyspec.store.picture import MAX_BYTES, decoded, size_of_picture

BMP = tiny_mmproj.bitmap()


JPEG = (
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    b"\xff\xc0\x00\x11\x08\x00\x07\x00\x09\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
)


@pytest.mark.parametrize(
    ("data", "size"),
    [(BMP, (8, 8)), (png(3, 2), (3, 2)), (JPEG, (9, 7)), (b"GIF89a\x05\x00\x04\x00", (5, 4))],
)
def test_sizes_are_in_the_header(data: bytes, size: tuple[int, int]) -> None:
    assert size_of_picture(data) == size


@pytest.mark.parametrize(
    "data", [b"", b"RIFF....WAVE", b"BM", b"\xff\xd8\xff", JPEG[:8], png(0, 4), b"<svg/>"]
)
def test_what_is_no_picture_has_no_size(data: bytes) -> None:
    with pytest.raises(InputError, match="unknown kind"):
        size_of_picture(data)


def test_a_picture_is_decoded_to_rows_of_rgb() -> None:
    rows = b"".join(b"\0" + bytes([10 * y, 10 * y + 1, 10 * y + 2]) for y in range(2))
    assert decoded(png(3, 2, rows)) == (
        3, 2, bytearray(x for y in (0, 10) for x in (y, y, y, y + 1, y + 1, y + 1, y + 2, y + 2, y + 2)),
    )  # fmt: skip


def test_a_damaged_picture_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be decoded"):
        decoded(png(300, 300, b"\0\1"))


@pytest.mark.parametrize("data", [png(60000, 60000), bytes(MAX_BYTES + 1)])
def test_too_much_is_refused_before_it_is_decoded(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pyspec.store.picture.run_child")
    with pytest.raises(InputTooLong, match="more than"):
        decoded(data)


def test_a_projector_is_tried_once_beside_its_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another width is refused in the child, which may die of it."""
    target = tiny.write(tiny_folder / "tries.gguf", tokens=tiny.ASCII)
    other = tiny_mmproj.write(tiny_folder / "wider-mmproj.gguf", n_embd=tiny.N_EMBD + 32)
    with pytest.raises(ModelRejected, match="beside"):
        check_projector(other, target)
    good = tiny_mmproj.write(tiny_folder / "good-mmproj.gguf")
    check_projector(good, target)
    monkeypatch.delattr("pyspec.store.check.run_child")
    check_projector(good, target)


def test_another_file_is_no_projector(tiny_folder: Path) -> None:
    target = tiny.write(tiny_folder / "no-projector.gguf", tokens=tiny.ASCII)
    llm = SpeculativeLlama(str(target), draft="none", trust=True)
    with llm, pytest.raises(ModelInvalid, match="not a projector"):
        Projector(target, llm)
