"""The installed package: its version, and what a clone borrows from it.

`pip install .` puts the compiled extension among the installed packages, but `python` started in the clone imports the folder
`pyspec` there, which has no extension. It is then borrowed from the installed package, if that was built from the same header. An
editable installation (`pip install -e .`) needs none of this.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str

NAME = "pyspec-llama"

LLAMA_CPP_VERSION = "0.3.36"
"""The llama-cpp-python release whose llama.cpp has the layout in native/llama_abi.h; pyproject.toml pins the same."""


def borrowed(package: Path, search: list[str]) -> list[str]:
    """Folders to add to the package's path `search` so that a clone is complete.

    These are the clone's, which has `models`, and the installed package, which has the extension.

    package: the folder that `pyspec` was imported from. Empty for an installed package, and if `search` is complete already.
    """
    root = package.parent
    if not (root / "native" / "CMakeLists.txt").is_file() or any(
        map(_extensions, map(Path, search))
    ):
        return []
    return [str(root), *_installed(root)]


def _installed(root: Path) -> list[str]:
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - see __getattr__

    try:
        found = distribution(NAME)
    except PackageNotFoundError:
        return []
    folder = Path(str(found.locate_file("pyspec")))
    key = interface_key(root).encode()
    same = any(key in path.read_bytes() for path in _extensions(folder))
    return [str(folder)] if same else []


def interface_key(root: Path) -> str:
    """The `ps_key` of an extension built from this clone's header; empty if there is no clone."""
    native = root / "native"
    if not (native / "cdef.py").is_file():
        return ""
    import runpy  # noqa: PLC0415 - see __getattr__

    key: str = runpy.run_path(str(native / "cdef.py"))["key"](
        (native / "pyspec.h").read_text(encoding="utf-8")
    )
    return key


def _extensions(folder: Path) -> list[Path]:
    named = [folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES]
    return [path for path in named if path.is_file()]


def __getattr__(name: str) -> str:
    """Find `__version__` when it is asked for: importlib.metadata takes as long to import as Python to start."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        found = version(NAME)
    except PackageNotFoundError:  # a clone that was never installed says elsewhere what it lacks
        found = "unknown"
    globals()[name] = found
    return found
