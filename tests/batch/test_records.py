"""Records: names that are their own, and the hash of what is asked."""

from pyspec.requests.records import Record, unique


def test_second_record_with_an_id_fails():
    names = ("a", "a", "in:2")
    records = [
        Record(id=name, prompt="x", source="in", line=i) for i, name in enumerate(names, start=1)
    ]
    first, second, third = unique(records)
    assert (first.id, first.error) == ("a", None)
    assert second.error is not None
    assert len({first.id, second.id, third.id}) == 3


def test_hash_is_of_what_is_asked():
    a, b = Record(id="1", prompt="x", line=1), Record(id="2", prompt="x", line=2)
    assert a.sha256 == b.sha256 != Record(id="1", prompt="x", seed=1).sha256
