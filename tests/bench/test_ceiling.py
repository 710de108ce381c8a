"""`bench/ceiling.py`: shares and chances by hand, costs that are known, and a tiny model as its own draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
HALVES = {0: 0.5, 1: 0.5}


@pytest.fixture
def ceiling(script):
    return script("ceiling")


def test_shares_of_noise_are_those_of_many_draws(ceiling) -> None:
    """Both take the argmax of log p + G by the same noise; no way has more than the least of both."""
    p, q = {1: 0.5, 2: 0.3, 3: 0.2}, {2: 0.6, 3: 0.3, 4: 0.1}
    noise = np.random.default_rng(1).gumbel(size=(200_000, 5))
    logs = [np.log([of.get(x, 1e-300) for x in range(5)]) for of in (p, q)]
    one, other = ((row + noise).argmax(1) for row in logs)
    found = ceiling.coupled(p, q)
    assert found == {
        x: pytest.approx(((one == x) & (other == x)).mean(), abs=0.005) for x in (2, 3)
    }
    assert ceiling.least(p, q) == {2: 0.3, 3: 0.2}
    assert sum(found.values()) <= 0.5


def test_a_place_is_reached_as_counted_by_hand(ceiling, script) -> None:
    """The draft says 0 half as often as the text does, then always; a draft as a whole makes up for nothing here."""
    place = script("rows").Behind([0, 1], [], False)
    text = [0] * 8
    found = ceiling.reach([HALVES] * 8, [{0: 0.25, 1: 0.75}, {0: 1.0}], text, place)
    tokens, whole, coupled, drafted = (one.taken.tolist() for one in found)
    assert tokens[:4] == whole[:4] == [1.0, 0.5, 0.5, 0.0]
    assert coupled[1] == pytest.approx(0.5)
    assert drafted[:3] == [1.0, 1.0, 0.0]
    assert found[0].chance[:3].tolist() == [0.75, 0.5, 0.0]


def test_a_draft_as_a_whole_may_make_up_for_a_token(ceiling, script) -> None:
    """Twice as likely in the draft, then half as likely: rules that go token by token lose half of it."""
    place = script("rows").Behind([], [], False)
    likely, unlikely = {0: 1.0}, {0: 0.25, 1: 0.75}
    tokens, whole, *_ = ceiling.reach([HALVES] * 8, [likely, unlikely], [0] * 8, place)
    assert tokens.taken[2] == 0.5
    assert whole.taken[2] == 1.0


def test_rows_that_are_not_known_are_taken_as_accepted(ceiling, script) -> None:
    place = script("rows").Behind([], [], True)
    tokens, *_ = ceiling.reach([HALVES] * 8, [{0: 0.25, 1: 0.75}], [0] * 8, place)
    assert tokens.taken.tolist() == [1.0] + [0.5] * 8


def test_tokens_a_round_are_the_sum_of_all_chances(ceiling) -> None:
    """Where each token is accepted with one chance: 1 + a + a^2 + ..."""
    taken = np.tile(0.6 ** np.arange(9.0), (30, 1))
    want = [(1 - 0.6 ** (k + 1)) / 0.4 for k in range(9)]
    assert ceiling.per_round([taken, taken]) == pytest.approx(want)


def test_the_oracle_drafts_what_will_be_accepted(ceiling) -> None:
    """One token at each place: two for a round of 1.5. None: as without drafts. Chances: more than the best length."""
    rounds = 1.0 + 0.5 * np.arange(9.0)

    def speed(right) -> float:
        return float(ceiling.largest(lambda speed: ceiling.holds(right, rounds, speed)))

    assert speed([np.ones((1, 30), int)]) == pytest.approx(4 / 3, abs=1e-3)
    assert speed([np.zeros((1, 30), int)]) == pytest.approx(1.0, abs=1e-3)
    taken = np.tile(0.6 ** np.arange(9.0), (100, 1))
    right = [ceiling.counts(taken, np.random.default_rng(1))]
    assert speed(right) > (ceiling.per_round([taken]) / rounds).max() > 1.0


def test_a_model_that_drafts_for_itself_is_accepted_by_every_rule(
    ceiling, questions: Path, tiny_ascii: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a rule in both tables, which are the page's; nobody is faster than the oracle."""
    out, pair = tmp_path / "ceiling", f"{tiny_ascii}={BENCH}/results/default-t08/results.json"
    words = [
        str(tiny_ascii),
        str(questions),
        pair,
        "--every",
        "1",
        "--tokens",
        "24",
        "--speeds",
        "1.2",
    ]
    ceiling.main([*words, "--out", str(out)])
    printed = capsys.readouterr().out
    assert printed in (out / "README.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()]
    assert [row[1] for row in rows[2:6]] == [row[1] for row in rows[9:13]] == list(ceiling.WAYS)
    for _, way, first, *_, fixed, oracle in rows[2:6]:
        assert float(first) > (0.9 if way == "coupled, drafted" else 0.99)
        assert float(oracle) >= float(fixed) - 0.001
