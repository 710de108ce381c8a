"""The package's own sources."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / "pyspec"


def modules() -> dict[str, Path]:
    """Every source file by its module's dotted name, a room's front door by the room's."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(HOME.rglob("*.py"))
    }


def rooms() -> list[str]:
    return sorted(
        name.removeprefix("pyspec.")
        for name, path in modules().items()
        if path.name == "__init__.py" and name.count(".") == 1
    )
