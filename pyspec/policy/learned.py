"""Everything a policy learns about acceptance, kept together and saved together."""

from __future__ import annotations

from math import log

import msgspec

from pyspec.policy.calibration import (
    PRIOR_INTERCEPT,
    PRIOR_SLOPE,
    Calibration,
    CalibrationState,
    prior_acceptance,
)
from pyspec.policy.estimator import AdaptiveBins, Logistic, Mix, MixState, clamp
from pyspec.policy.features import COMPANION_WIDTH, DRAFT_WIDTH, LOGIT_MAX, Features
from pyspec.policy.lookups import LookupEstimator, LookupState
from pyspec.policy.types import TABLE_BINS

_SHARED_DECAY = 0.99
LAST_BIN = TABLE_BINS - 1e-9  # times u in [0, 1]: the bin of p, which u is linear in

# Prior weights, in the order of the features. With a companion part of the draft's own slope
# moves to the companion's probability and its agreement.
_DRAFT_PRIOR = (PRIOR_INTERCEPT - 0.4, 4.0 * PRIOR_SLOPE, -0.3, 0.0, 0.8, 0.2)
_COMPANION_PRIOR = (-1.2, 2.2, -0.2, 0.0, 0.6, 0.2, 0.3, 0.2, 1.2, 0.5)


def _draft_mix() -> Mix:
    bins = AdaptiveBins()
    centres = [((k // 4 + 0.5) / 2.0 - 1.0) * LOGIT_MAX for k in range(16)]
    bins.seed([prior_acceptance(c) for c in centres])
    return Mix(bins, Logistic(_DRAFT_PRIOR))


def _companion_mix() -> Mix:
    bins = AdaptiveBins()
    middles = [((k // 4 + 0.5) / 4.0, (k % 4 + 0.5) / 4.0) for k in range(16)]
    bins.seed([clamp(0.1 + 0.4 * s + 0.45 * a) for s, a in middles])
    return Mix(bins, Logistic(_COMPANION_PRIOR))


class LearnedState(msgspec.Struct):
    """Saved form of Learned."""

    calibration: CalibrationState
    draft: MixState
    companion: MixState
    lookup: LookupState


class Learned:
    """Calibration, the two mixes (draft alone, with companion) and the lookup estimator.

    `loss_without` and `loss_with` are running log-losses (nats per token) of the two mixes on the
    very same positions: those the companion scored.
    """

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.draft = _draft_mix()
        self.companion = _companion_mix()
        self.lookup = LookupEstimator()
        self.loss_without = self.loss_with = 0.69
        self.scored = 0

    @property
    def companion_bits(self) -> float:
        """Log-loss that the companion saves, in nats per drafted token; negative if it misleads."""
        return self.loss_without - self.loss_with

    @property
    def companion_helps(self) -> bool:
        """Whether estimates with the companion's features are at least as good as without."""
        return self.loss_with <= self.loss_without + 0.005

    def learn_draft(
        self, position: int, f: Features, accepted: bool, before: float, mood: int
    ) -> None:
        """One observed position of a model draft; `before` is the survival in front of it."""
        self.calibration.update(position, int(f.u * LAST_BIN), accepted, before, mood)
        self.draft.update(f, accepted)

    def learn_companion(self, f: Features, without: float, with_: float, accepted: bool) -> None:
        """One observed position the companion scored; the two predictions made before it."""
        self.companion.update(f, accepted)
        plain, full = (without, with_) if accepted else (1.0 - without, 1.0 - with_)
        self.loss_without += (1.0 - _SHARED_DECAY) * (-log(plain) - self.loss_without)
        self.loss_with += (1.0 - _SHARED_DECAY) * (-log(full) - self.loss_with)
        self.scored += 1

    def state(self) -> LearnedState:
        """For a profile."""
        return LearnedState(
            self.calibration.state(),
            self.draft.state(),
            self.companion.state(),
            self.lookup.state(),
        )

    @classmethod
    def restore(cls, state: LearnedState) -> Learned:
        """The inverse of `state`; raises OptionError on contradictions."""
        out = cls()
        out.calibration = Calibration.restore(state.calibration)
        out.draft = Mix.restore(state.draft, DRAFT_WIDTH)
        out.companion = Mix.restore(state.companion, COMPANION_WIDTH)
        out.lookup = LookupEstimator.restore(state.lookup)
        return out
