"""Rows of a decode: shared fairly, and never so many that attention looks at everybody's cells."""

from __future__ import annotations

import pytest
from devices import LAYERS
from hypothesis import given
from hypothesis import strategies as st

from pyspec.batch.records import Record
from pyspec.batch.rows import share_rows
from pyspec.engine.round import Loop


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    st.integers(0, 600),
)
def test_rows_are_shared_fairly(missing, budget):
    """Never over the budget or over what is missing, nothing left over, and the first always gets some."""
    shares = share_rows(list(enumerate(missing)), budget)
    given_ = dict(shares)
    assert len(given_) == len(shares)
    assert sum(given_.values()) == min(budget, sum(missing))
    assert all(0 < n <= missing[seq] for seq, n in shares)
    assert budget == 0 or given_[0] >= min(missing[0], max(1, budget // 4))


@pytest.mark.skipif(LAYERS != 0, reason="a rule for processors")
@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_decodes_beside_answers_stay_under_an_attention_tile(open_batch, monkeypatch, draft):
    """On a CPU, 64 rows and more would compute attention over the cells of every other sequence."""
    rows = []
    round_ = Loop.round

    def counted(self, runs, *more):
        answering = any(run.unread == 0 for run in runs)
        before = self.engine.counters().rows[0]
        steps = round_(self, runs, *more)
        rows.append(self.engine.counters().rows[0] - before if answering else 0)
        return steps

    monkeypatch.setattr(Loop, "round", counted)
    records = [Record(id=str(i), prompt=chr(97 + i) * 150, max_tokens=4 + 3 * i) for i in range(12)]
    list(open_batch(draft=draft, parallel=4).run(records))
    assert max(rows) == 63
