"""From a name or a path to a file, and from a file to what fits it."""

from pathlib import Path

import pytest
from helpers.make_gguf import split
from helpers.shop import SHIPPED, WHEEL

from pyspec.errors import ModelNotFound, ModelUnreadable
from pyspec.hub.drafts import known_as, offers_for
from pyspec.hub.locate import resolve

pytestmark = pytest.mark.usefixtures("shop")


def test_no_name_is_the_default_target(tiny_bytes):
    assert resolve().read_bytes() == tiny_bytes


@pytest.mark.parametrize(
    "name", ["模型.gguf", "a b [1].gguf", "model", "MODEL.GGUF", "a:b.gguf", "é-ü.gguf"]
)
def test_a_path_is_a_file_of_any_name(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_bytes(b"x")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(path)) == resolve(path) == resolve(f"~/{name}") == path


def test_any_part_is_the_model(tmp_path):
    parts = split(tmp_path)
    assert {resolve(str(part)) for part in parts} == {parts[0]}
    parts[0].unlink()
    for part in parts[1:]:
        with pytest.raises(ModelNotFound, match="big-00001-of-00003"):
            resolve(str(part))


def test_known_name_wins_over_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("toy", "mine"):
        Path(name).write_bytes(b"x")
    assert resolve("toy").name == "toy.gguf"
    assert [resolve(name) for name in ("./toy", "mine")] == [Path("toy"), Path("mine")]


@pytest.mark.parametrize("name", ["qqqqqqqq", "absent.gguf", "./absent", "hf:nonsense", "a\0b", ""])
def test_what_is_not_there(name):
    with pytest.raises(ModelNotFound):
        resolve(name)


def test_folder_is_unreadable(tmp_path):
    with pytest.raises(ModelUnreadable, match="name a GGUF file in it"):
        resolve(f"{tmp_path}/")


def test_drafts_that_fit_are_found(shop):
    shop.add("head", b"1", SHIPPED, role="draft", for_target=["toy"])
    shop.add("other", b"3", SHIPPED, role="draft", for_target=["gemma"])
    shop.add("friend", b"4", SHIPPED, role="companion", for_target=["toy"])
    assert [entry.name for entry in offers_for(resolve(), "draft")] == ["head"]


def test_a_copy_is_known_by_size_and_hash(shop, tiny, tmp_path, monkeypatch):
    assert known_as(tiny, shop.manifest).name == "toy"
    big = tmp_path / "big.gguf"
    big.write_bytes(b"x")
    monkeypatch.setattr("pyspec.hub.drafts.file_sha256", lambda _: pytest.fail("hashed"))
    assert known_as(big, shop.manifest) is None


def test_the_original_of_a_converted_model_can_be_had(shop, tiny_bytes):
    shop.add("auto", tiny_bytes, WHEEL, convert="q8_0")
    assert resolve("auto").name == "auto-q8_0.gguf"
    assert resolve("auto-original").read_bytes() == tiny_bytes
