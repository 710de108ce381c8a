"""Pages, their pictures, and results.json."""

import msgspec
import pytest
from helpers.making import SETUP, record, turn
from measure.records import Difference
from measure.report import collect, gather, page, save_page


def results_records():
    return [
        record("plain", 1, turn([1, 2, 3], 2.0), exact=True),
        record("slow", 1, turn([1, 2, 3], 4.0)),
        record("slow", 2, error="it broke"),
    ]


def results():
    found = [Difference("server", 1, 0, 2, 3, 4, 0.01)]
    return collect(
        results_records(), found, title="Bench", command="pyspec bench", notes=["server is skipped"]
    )


def test_own_ways_are_set_against_peers():
    seconds = {"plain": 2.0, "strict": 1.0, "server": 4.0}
    records = [
        record(who, 1, turn([1, 2, 3], s), peer=who == "server") for who, s in seconds.items()
    ]
    text = page(collect(records, [], title="t", command="c"))
    assert "| plain | 2.00 |" in text
    assert "| strict | 4.00 |" in text
    assert "Against" not in page(results())


def at(temperature, *, exact, found=0):
    setup = msgspec.structs.replace(SETUP, temperature=temperature)
    asked = [(who, q) for who in ("plain", "strict") for q in (1, 2)]
    records = [record(who, q, turn([1, 2, 3]), exact=exact) for who, q in asked]
    records = [msgspec.structs.replace(one, setup=setup) for one in records]
    parted = [Difference("strict", q, 0, 2, 3, 4, 0.01, rounding=True) for q in range(found)]
    return page(collect(records, parted, title="t", command="c"))


def test_a_page_says_what_was_compared():
    assert "All were equal" in at(0.0, exact=True)
    assert "Nothing was compared" in at(0.8, exact=False)
    assert "equal" not in at(0.8, exact=False).partition("## Equality")[2].partition("Nothing")[2]
    assert "All were equal" in at(0.8, exact=True)
    assert "1 of 2 were equal" in at(0.8, exact=True, found=1)
    assert "Greedy" not in at(0.8, exact=True)


def test_pictures_can_be_drawn_from_the_file(tmp_path):
    counts = {"rounds": 4, "accepted_by_position": [3, 1]}
    records = [record("strict", i, turn([1, 2], speculation=counts)) for i in (1, 2)]
    records.append(record("plain", 1, turn([1, 2])))
    drawn = gather(records, {"target": [0.0, 1.23456]})
    assert drawn.taken == {"strict": (8, [6, 2])}
    assert drawn.curves == {"target": [0.0, 1.235]}
    save_page(collect(records, [], title="t", command="c", drawn=drawn), tmp_path)
    pictures = {path.name for path in tmp_path.glob("*.svg")}
    assert pictures == {"speed-up.svg", "accepted-by-position.svg", "cost.svg"}


@pytest.mark.parametrize(("layers", "devices", "says"), [
    (9, "NVIDIA H100 80GB", "1 threads, 9 layers on NVIDIA H100 80GB"),
    (-1, "A + B", "1 threads, all layers on A + B"),
    (9, "", "1 threads, 9 layers on a GPU"), # records of earlier versions
])  # fmt: skip
def test_the_page_names_the_device(layers, devices, says):
    placed = {"gpu_layers": layers, "devices": devices, "engine": "tensor_split [3.0, 1.0]"}
    made = msgspec.structs.replace(results(), setup=msgspec.structs.replace(SETUP, **placed))
    assert f"{says}, tensor_split [3.0, 1.0]\n" in page(made)
