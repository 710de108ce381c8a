"""Models that ship: beside the manifest, in a package of their own, or fetched with the target that they are for."""

import re
import sys
from pathlib import Path

import pytest
from helpers.shop import SHIPPED

from pyspec.errors import FetchError, OptionError
from pyspec.gguf.check import ships
from pyspec.hub.drafts import made_for
from pyspec.hub.fetch import cached, fetch
from pyspec.hub.locate import remove, resolve
from pyspec.hub.sources import load_manifest
from pyspec.machine.others import DRAFTS, came_with, drafts_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


@pytest.fixture
def head(shop, tiny_bytes):
    """A shop whose target has a draft that ships, which is not beside the manifest but in the wheel drafts==1."""
    shop.pip.wheels["drafts==1"] = {"d/m.gguf": tiny_bytes + b"\0" * 32}
    shop.add("head", tiny_bytes + b"\0" * 32, SHIPPED, role="draft", for_target=["toy"])
    return shop


def test_a_target_that_is_fetched_brings_its_draft(head, own_cache):
    resolve()
    assert head.pip.calls == ["toy==1", "drafts==1"]
    assert cached(head.entry("head")) == own_cache / "models" / "head.gguf"


def test_a_target_is_fetched_where_its_draft_cannot_be(head):
    """Nothing fails, nobody asks again at the next start, and one sentence has the command."""
    head.pip.wheels["drafts==1"] = {}
    target = resolve()
    resolve()
    assert head.pip.calls == ["toy==1", "drafts==1"]
    (draft,) = made_for(target)
    assert (draft.name, draft.path, draft.origin) == ("head", None, "to fetch")
    with pytest.raises(FetchError):
        fetch(head.entry("head"))


def test_a_file_beside_the_manifest_goes_first(head, tiny_bytes):
    beside = head.folder / "head.gguf"
    beside.write_bytes(tiny_bytes + b"\0" * 32)
    resolve()
    assert head.pip.calls == ["toy==1"]
    assert fetch(head.entry("head")) == beside
    with pytest.raises(OptionError, match="a part of pyspec"):
        remove("head")


def test_a_damaged_file_beside_the_manifest_hides_no_good_one(head, own_cache):
    (head.folder / "head.gguf").write_bytes(b"GGUF")
    assert fetch(head.entry("head")) == own_cache / "models" / "head.gguf"


def test_a_fetched_one_can_be_removed(head):
    path = fetch(head.entry("head"))
    assert remove("head").startswith("removed head")
    assert not path.exists()


def test_the_package_of_its_own_is_found(head, tiny_bytes, tmp_path, monkeypatch):
    """Installed by its name, its models ship with pyspec: they are in place, and not tried."""
    folder = tmp_path / "site" / "pyspec_llama_drafts"
    (tmp_path / "site" / "pyspec_llama_drafts-1.0.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "pyspec_llama_drafts-1.0.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {DRAFTS}\nVersion: 1.0.0\n"
    )
    folder.mkdir()
    (folder / "head.gguf").write_bytes(tiny_bytes + b"\0" * 32)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    drafts_folder.cache_clear()
    try:
        assert fetch(head.entry("head")) == folder / "head.gguf"
        assert ships(folder / "head.gguf")
        assert came_with(folder / "head.gguf", ".prior.json") == head.folder / "head.prior.json"
    finally:
        drafts_folder.cache_clear()


@pytest.mark.usefixtures("shop")
def test_what_came_with_others_drafts_is_beside_them(tmp_path):
    assert came_with(tmp_path / "head.gguf", ".prior.json") == tmp_path / "head.prior.json"


def test_the_package_holds_what_the_manifest_says():
    own = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text())
    code = tomllib.loads((ROOT / "pyproject.toml").read_text())
    name, version = own["project"]["name"], own["project"]["version"]
    held = own["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert name == DRAFTS
    assert code["project"]["optional-dependencies"]["drafts"] == [f"{name}=={version}"]
    shipped = [entry for entry in load_manifest(ROOT / "models").model if entry.ships]
    assert len(shipped) == 2
    for entry in shipped:
        (wheel,) = entry.source.parts
        assert (wheel.package, wheel.version) == (name, version)
        assert held[entry.file] == wheel.member == f"{re.sub('-', '_', name)}/{entry.file}"
