"""The package's own sources: `pyspec.measure` lies beside the scripts of bench/ that use it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
HOMES = {"pyspec": ROOT / "pyspec", "pyspec.measure": ROOT / "bench" / "measure"}


def modules() -> dict[str, Path]:
    """Every source file by its module's dotted name, a room's front door by the room's."""
    return {
        ".".join([name, *path.relative_to(home).with_suffix("").parts]).removesuffix(
            ".__init__"
        ): path
        for name, home in HOMES.items()
        for path in sorted(home.rglob("*.py"))
    }


def rooms() -> list[str]:
    """Names of the package's rooms, below `pyspec.`."""
    return sorted(
        name.removeprefix("pyspec.")
        for name, path in modules().items()
        if path.name == "__init__.py" and name.count(".") == 1
    )
