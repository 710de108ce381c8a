"""Of several types the fastest is taken: timed once, where nobody else used the machine, and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.shop import WHEEL, Shop

from pyspec.store import fastest as module
from pyspec.store.fetch import convert
from pyspec.store.locate import resolve
from pyspec.store.machine import default_threads
from pyspec.store.timed import how, kept_times


def best_of(shop: Shop, raw: bytes, monkeypatch: pytest.MonkeyPatch, ms: dict[str, float]) -> str:
    """The type that an entry of three resolves to where decodes take so long; 0: the child said nothing."""
    shop.add("auto", raw, WHEEL, convert=["q8_0", "bf16", "q4_0"])

    def times(path: Path, _place: object) -> dict[int, float]:
        (found,) = (t for kind, t in ms.items() if path.stem.endswith(kind))
        return {1: found} if found else {}

    monkeypatch.setattr(module, "_times", times)
    return resolve("auto").stem.removeprefix("auto-")


@pytest.mark.parametrize(
    ("ms", "best"),
    [
        ({"q8_0": 9.0, "bf16": 5.0, "q4_0": 7.0}, "bf16"),
        ({"q8_0": 9.0, "bf16": 0.0, "q4_0": 7.0}, "q4_0"),
        ({"q8_0": 0.0, "bf16": 0.0, "q4_0": 0.0}, "q8_0"),
    ],
)
def test_of_several_types_the_fastest_is_taken(
    ms: dict[str, float], best: str, shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be timed is out of it; where none can be, it is the first."""
    assert best_of(shop, tiny_bytes, monkeypatch, ms) == best


@pytest.mark.parametrize("busy", [False, True])
def test_the_times_that_chose_the_type_are_kept(
    shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """So that the first answer knows what decodes cost; those of a busy machine are not."""
    shop.add("auto", tiny_bytes, WHEEL, convert=["q8_0", "bf16"])
    monkeypatch.setattr(module.Watch, "busy", lambda *_: busy)
    monkeypatch.setattr(
        module,
        "_times",
        lambda path, _place: dict.fromkeys((1, 4, 8, 64), 1.0 + ("bf16" in path.name)),
    )
    kept = kept_times(resolve("auto"), how(default_threads()))
    assert kept == ({} if busy else dict.fromkeys((1, 4, 8), 1.0))


@pytest.mark.parametrize(("quiet", "wanted"), [(False, "bf16"), (True, "q8_0")])
def test_a_type_that_a_busy_machine_chose_is_chosen_again_when_it_is_quiet(
    shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch, quiet: bool, wanted: str
) -> None:
    """Not before: every command would take the time."""
    monkeypatch.setattr(module.Watch, "busy", lambda *_: True)
    monkeypatch.setattr(module, "is_quiet", lambda: False)
    assert best_of(shop, tiny_bytes, monkeypatch, {"q8_0": 2.0, "bf16": 1.0, "q4_0": 2.0}) == "bf16"
    monkeypatch.setattr(module, "is_quiet", lambda: quiet)
    monkeypatch.setattr(module.Watch, "busy", lambda *_: False)
    monkeypatch.setattr(module, "_times", lambda path, _place: {1: 1.0 + ("q8_0" not in path.name)})
    assert resolve("auto").stem == f"auto-{wanted}"


def test_what_was_made_for_timing_alone_goes(
    shop: Shop, own_cache: Path, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion that somebody asked for before stays."""
    shop.add("auto", tiny_bytes, WHEEL, convert=["q8_0", "bf16", "q4_0"])
    convert(shop.entry("auto"), "q4_0")
    monkeypatch.setattr(module, "_times", lambda path, _place: {1: 1.0 + ("bf16" not in path.name)})
    resolve("auto")
    left = sorted(p.name for p in (own_cache / "models").glob("auto-*.gguf"))
    assert left == ["auto-bf16.gguf", "auto-q4_0.gguf"]


def test_the_fastest_type_is_found_once(
    shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process takes what was found, converted again should it be gone."""
    first = best_of(shop, tiny_bytes, monkeypatch, {"q8_0": 2.0, "bf16": 1.0, "q4_0": 2.0})
    monkeypatch.setattr(module, "is_quiet", lambda: False)
    monkeypatch.setattr(module, "_times", lambda *_: pytest.fail("timed again"))
    resolve("auto").unlink()
    assert resolve("auto").stem.removeprefix("auto-") == first


def test_a_cache_that_cannot_be_written_has_what_it_has(
    shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made elsewhere and read here: the type that is there is taken, and nothing is timed or locked."""
    shop.add("auto", tiny_bytes, WHEEL, convert=["q8_0", "bf16"])
    made = convert(shop.entry("auto"), "bf16")
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    monkeypatch.setattr(module, "file_lock", lambda *_: pytest.fail("locked"))
    assert resolve("auto") == made


class Elsewhere:
    """A device that layers may go to."""

    description, free, total = "Fast Card 9", 1 << 34, 1 << 34


def test_types_are_timed_where_layers_will_lie(
    shop: Shop, tiny_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another type may be fastest on a device; each place has its own answer, and asks for it once."""
    shop.add("auto", tiny_bytes, WHEEL, convert=["q8_0", "bf16"])
    monkeypatch.setattr(module, "layer_devices", lambda _names: [Elsewhere()])
    monkeypatch.setattr(module, "is_quiet", lambda: False)
    asked = []

    def times(path: Path, place: module.Devices | None) -> dict[int, float]:
        asked.append(place and (place.layers, place.devices, place.described))
        return {1: 1.0 + (("bf16" in path.name) == (place is not None))}

    monkeypatch.setattr(module, "_times", times)
    places = [(0, ()), (-1, ("CARD0",)), (0, ()), (-1, ("CARD0",)), ("auto", ())]
    kinds = [resolve("auto", layers=n, devices=names).stem[5:] for n, names in places]
    assert kinds == ["bf16", "q8_0", "bf16", "q8_0", "q8_0"]
    device = (-1, ("CARD0",), "Fast Card 9")
    assert asked == [None] * 2 + [device] * 2 + [("auto", (), "Fast Card 9")] * 2


def test_without_a_device_the_processor_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many layers are asked for."""
    monkeypatch.setattr(module, "layer_devices", lambda _names: [])
    assert module.place_of("auto", ()) is None
    assert module.place_of(-1, ()) is None


def test_decodes_are_timed_in_a_child(tiny_target: Path) -> None:
    """Four widths, in milliseconds; nothing of a file that cannot be loaded."""
    times = module._times(tiny_target)
    assert [*times] == [1, 4, 8, 64]
    assert min(times.values()) > 0
    assert module._times(Path(__file__)) == {}
