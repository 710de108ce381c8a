"""C and Python put a draft's probability into the same bin of the acceptance table."""

from helpers import tiny
from helpers.answers import ask

from pyspec.draft.types import TABLE_BINS, table_bin


def test_drafting_goes_on_in_pythons_bin_alone(open_llama, tiny_target, tiny_draft):
    """With a table of one in the bin that Python names and of nothing elsewhere, a second token is drafted; without it none."""
    llm = open_llama(tiny_target, draft=tiny_draft)
    engine = llm.assembly.engine
    seen = set()
    for first in range(3, tiny.N_VOCAB):
        ask(llm, [first, 3 + first * 7 % 29, 5], 1)
        engine.set_stop([0.5], None)
        engine.draft([0], [1])
        p = engine.drafted(0).p[0]
        seen.add(table_bin(p))
        table = [float(i == table_bin(p)) for i in range(TABLE_BINS)]
        for believed, n in ((table, 2), ([1.0 - x for x in table], 1)):
            engine.put_draft(0, ())
            engine.set_stop([0.5], believed)
            engine.draft([0], [2])
            assert engine.drafted(0).n == n
    assert len(seen) > 5
