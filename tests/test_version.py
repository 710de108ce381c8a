"""Running from a clone: the package beside the sources finds what the installed one has built from the same header."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from pyspec import _version

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path):
    for name in ("pyspec", "models", "native"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("*.so", "*.gguf", "__pycache__"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


# An editable installation leads every import to its own clone.
PLAINLY = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'Redirect' not in type(f).__name__]\n"


def run(clone, code):
    done = subprocess.run(
        [sys.executable, "-c", PLAINLY + textwrap.dedent(code)],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_a_script_in_the_clone_runs_its_sources(clone):
    printed = run(
        clone,
        """
        import pyspec, pyspec.models
        from pyspec import _lib
        print(pyspec.__file__, pyspec.models.__path__[0], sep="\\n")
        """,
    )
    assert printed.splitlines() == [
        str(clone / "pyspec" / "__init__.py"),
        str(clone / "models"),
    ]


def test_a_clone_of_another_interface_borrows_nothing(clone):
    """An extension of another header would crash where it is called, whatever its version."""
    path = clone / "native" / "pyspec.h"
    path.write_text(path.read_text().replace("float z1;", "double z1;"))
    assert _version.borrowed(clone / "pyspec", [str(clone / "pyspec")]) == [str(clone)]


def test_what_only_a_clone_uses_is_in_no_wheel():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]
    assert build["packages"] == {"pyspec": "pyspec", "pyspec/models": "models"}
    folders = {path.name for path in (ROOT / "models").iterdir() if path.is_dir()} - {"__pycache__"}
    assert {f"pyspec/models/{name}" for name in folders} <= set(build["exclude"])


def test_an_installed_package_borrows_nothing(tmp_path):
    assert _version.borrowed(tmp_path / "pyspec", [str(tmp_path / "pyspec")]) == []


def test_the_citation_names_this_version():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {stated}\n" in cited
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.MULTILINE)[1] == stated
