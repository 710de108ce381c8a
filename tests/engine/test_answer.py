"""Which waiting job goes next."""

from types import SimpleNamespace

import pytest

from pyspec.engine.answer import AnswerQueue


def queue(*needs, **options):
    """Jobs of these many cells in the order of their coming, for one slot."""
    made = AnswerQueue(100, 1, **options)
    for index, need in enumerate(needs):
        made.add(SimpleNamespace(alone=False, need=need, index=index))
    return made


@pytest.mark.parametrize(("in_order", "first"), [(False, 50), (True, 10)])
def test_the_longest_goes_first_or_the_one_that_came_first(in_order, first):
    job = queue(10, 50, 20, in_order=in_order).take(lambda _: True)
    assert job is not None
    assert job.need == first


def test_one_that_does_not_fit_is_passed_by_a_few_times():
    """Then it is waited for: short ones would keep it out for ever."""
    made, taken = queue(1000, *[1] * 50), 0
    while made.take(lambda job: job.need == 1) is not None:
        taken += 1
    assert 0 < taken < 50
