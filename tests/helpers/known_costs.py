"""What decodes take, known to a policy beforehand."""

from measure.simulate import known_curve

from pyspec.draft.goodput import GoodputPolicy
from pyspec.draft.row_times import expand

LINE = expand({1: 10.0, 64: 80.0})
"""10 ms for a row of the target, 1.1 for each more."""
SIDE = [0.05 * t for t in LINE]


def measured(**options: bool) -> GoodputPolicy:
    """A policy that knows what decodes cost."""
    return GoodputPolicy(known_curve({0: LINE}, SIDE, SIDE), **options)
