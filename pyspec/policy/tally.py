"""Statistics of the choice: rounds by length, time by model, the best length in hindsight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspec.policy.choose import survivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspec.policy.types import Outcome


class Tally:
    """Counts of one answer (or of any stretch between two resets)."""

    def __init__(self) -> None:
        self.rounds = 0
        self.lengths: dict[int, int] = {}
        self.predicted = 0.0
        self.accepted = self.relaxed = self.verified = self.emitted = 0
        self.t_draft = self.t_companion = self.t_verify = self.t_round = 0.0
        self.draft_rounds = self.companion_rounds = self.probes = 0
        self._chains: dict[tuple[int, int, bool | None], int] = {}

    def add(self, outcome: Outcome, predicted: float) -> None:
        """One round; `predicted` is the sum of survivals of the tokens that were verified."""
        self.rounds += 1
        self.predicted += predicted
        for seq in outcome.seqs:
            n, accepted = seq.n_verified, seq.n_accepted
            self.lengths[n] = self.lengths.get(n, 0) + 1
            key = (n, accepted, seq.next_match)
            self._chains[key] = self._chains.get(key, 0) + 1
            self.accepted += accepted
            self.relaxed += seq.n_relaxed
            self.verified += n
            self.emitted += accepted + 1
        self.t_draft += outcome.t_draft
        self.t_companion += outcome.t_companion
        self.t_verify += outcome.t_verify
        parts = outcome.t_draft + outcome.t_companion + outcome.t_verify
        self.t_round += max(outcome.t_round, parts)
        self.draft_rounds += outcome.draft_steps > 0
        self.companion_rounds += outcome.companion_rows > 0

    def hindsight(
        self, verify: Sequence[float], step: float, by_position: Sequence[float]
    ) -> tuple[int, float]:
        """(best fixed length, its goodput in tokens per ms), 0 included, over the same rounds.

        What lay beyond the verified tokens is known up to one token and taken from the mean
        acceptance by position from there on. An estimate: a fixed length would have started its
        rounds at other places of the text.
        """
        best, top = 0, 0.0
        for k in range(len(verify)):
            tokens = sum(
                count * (1.0 + _accepted(key, k, by_position))
                for key, count in self._chains.items()
            )
            time = sum(self._chains.values()) * (verify[k] + k * step)
            if time > 0.0 and tokens / time > top:
                best, top = k, tokens / time
        return best, top

    def report(
        self, verify: Sequence[float], step: float, by_position: Sequence[float]
    ) -> dict[str, Any]:
        """The statistics as plain values, times in ms."""
        best, goodput = self.hindsight(verify, step, by_position)
        return {
            "rounds": self.rounds,
            "rounds_by_length": dict(sorted(self.lengths.items())),
            "tokens_predicted": round(self.predicted, 3),
            "tokens_accepted": self.accepted,
            "tokens_relaxed": self.relaxed,
            "tokens_verified": self.verified,
            "tokens_emitted": self.emitted,
            "rounds_drafted": self.draft_rounds,
            "rounds_with_companion": self.companion_rounds,
            "rounds_probed": self.probes,
            "ms_draft": round(self.t_draft, 3),
            "ms_companion": round(self.t_companion, 3),
            "ms_target": round(self.t_verify, 3),
            "ms_other": round(
                max(0.0, self.t_round - self.t_draft - self.t_companion - self.t_verify), 3
            ),
            "best_fixed_length": best,
            "tokens_saved_against_best_fixed": round(self.emitted - goodput * self.t_round, 3),
        }


def _accepted(key: tuple[int, int, bool | None], k: int, by_position: Sequence[float]) -> float:
    """Drafted tokens a length k would have had accepted where `key` was seen."""
    verified, accepted, next_match = key
    if k <= verified or accepted < verified:
        return float(min(k, accepted))
    if next_match is False:
        return float(accepted)
    known = accepted + (next_match is True)
    last = by_position[-1] if by_position else 0.5
    tail = [by_position[i] if i < len(by_position) else last for i in range(known, k)]
    return known + sum(survivals(tail))
