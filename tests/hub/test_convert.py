"""Conversion: made by llama.cpp in a child, recorded, found by name, never half there."""

import pytest
from helpers.shop import sha
from llama_cpp import llama_cpp as lc

from pyspec.errors import FetchError
from pyspec.gguf.header import read_header
from pyspec.hub import fetch as module
from pyspec.hub.drafts import known_as
from pyspec.hub.fetch import CONVERSIONS, convert, converted, read_provenance
from pyspec.hub.locate import resolve
from pyspec.machine.child import ChildExit


@pytest.mark.parametrize(("kind", "made"), [("q8_0", "Q8_0"), ("bf16", "BF16"), ("q4_0", "Q4_0")])
def test_conversion_has_the_type_a_name_and_a_record(kind, made, shop, tiny_bytes):
    path = convert(shop.entry(), kind)
    assert read_header(path).tensor_types()[made] >= 7
    assert resolve(f"toy-{kind}") == path
    record = read_provenance(path)
    assert (record.source, record.source_sha256) == ("toy", sha(tiny_bytes))
    assert known_as(path, shop.manifest).name == "toy"


def test_second_conversion_starts_no_child(shop, monkeypatch):
    made = convert(shop.entry(), "q8_0")
    monkeypatch.setattr(module, "run_child", lambda *_a, **_k: pytest.fail("converted again"))
    assert convert(shop.entry(), "q8_0") == made


@pytest.mark.parametrize("fault", ["no record", "other bytes", "other source"])
def test_conversion_that_does_not_fit_counts_as_absent(fault, shop):
    made = convert(shop.entry(), "q8_0")
    record = made.with_suffix(".json")
    if fault == "no record":
        record.unlink()
    elif fault == "other bytes":
        made.write_bytes(made.read_bytes()[:-1] + b"\x01")
    else:
        record.write_text(record.read_text().replace('source_sha256":"', 'source_sha256":"0'))
    assert converted(shop.entry(), "q8_0") is None


def test_failed_conversion_leaves_nothing(shop, own_cache, monkeypatch):
    monkeypatch.setattr(module, "run_child", lambda *_a, **_k: ChildExit("", signal=6))
    with pytest.raises(FetchError, match="SIGABRT"):
        convert(shop.entry(), "q8_0")
    left = [p.name for p in (own_cache / "models").iterdir() if not p.name.endswith(".lock")]
    assert left == ["toy.gguf"]


def test_types_are_llama_cpps():
    theirs = {kind: getattr(lc, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}") for kind in CONVERSIONS}
    assert theirs == CONVERSIONS
