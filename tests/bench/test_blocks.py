"""`bench/blocks.py`: block verification played out in full on a tiny language, and a tiny model as its own draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

IDS, LONGEST = range(3), 3
Prefix = tuple[int, ...]
Leaf = tuple[Prefix, float]


def language(seed: int) -> dict[Prefix, np.ndarray]:
    """The distribution of the next token behind each text."""
    chance = np.random.default_rng(seed)
    texts = [text for n in range(LONGEST + 2) for text in product(IDS, repeat=n)]
    return {text: chance.dirichlet(np.full(len(IDS), 0.7)) for text in texts}


P, Q = language(1), language(2)


def whole(_: Prefix) -> bool:
    return True


def unsure(text: Prefix) -> bool:
    """Goes on by the row and by the tokens before it."""
    return bool(Q[text].max() < 0.8 and text[-1:] != (2,))


def settled(
    goes_on: Callable[[Prefix], bool], text: Prefix = (), share: float = 1.0
) -> Iterator[Leaf]:
    """Drafts of a policy that settles a token before it is drawn, and how often each comes."""
    if len(text) == LONGEST or not goes_on(text):
        yield text, share
        return
    for x in IDS:
        yield from settled(goes_on, (*text, x), share * Q[text][x])


def peeking() -> Iterator[Leaf]:
    """Of a policy that drops a last token that looks bad."""
    for text, share in settled(whole):
        yield (text[:-1] if Q[text[:-1]][text[-1]] < 0.4 else text), share


def played(drafts: Iterator[Leaf], *, residual: bool = True) -> dict[tuple[int, Prefix], float]:
    """How often so many tokens are accepted and the text begins with these tokens, by Sun et al.'s block verification."""
    found: dict[tuple[int, Prefix], float] = defaultdict(float)
    for draft, share in drafts:
        w, left = [1.0], []
        for i, x in enumerate(draft):
            left.append(np.maximum(w[i] * P[draft[:i]] - Q[draft[:i]], 0.0))
            w.append(min(1.0, w[i] * P[draft[:i]][x] / Q[draft[:i]][x]))
        rest = share
        for n in range(len(draft), -1, -1):
            last = n == len(draft)
            mass = 0.0 if last else float(left[n].sum())
            chance = 1.0 if n == 0 else w[n] if last else mass / (mass + 1.0 - w[n])
            follows = P[draft[:n]] if last or not residual else left[n] / max(mass, 1e-300)
            for x in IDS if rest * chance > 0.0 else ():
                found[n, (*draft[:n], x)] += rest * chance * follows[x]
            rest *= 1.0 - chance
    return found


def apart(found: dict[tuple[int, Prefix], float]) -> float:
    """How far the text's first two tokens are from the target's."""
    shares: dict[Prefix, float] = defaultdict(float)
    for (_, text), share in found.items():
        for x in IDS:
            shares[(*text, x)[:2]] += share * (P[text][x] if len(text) == 1 else 1.0 / len(IDS))
    return max(abs(shares[a, b] - P[()][a] * P[a,][b]) for a, b in product(IDS, IDS))


def test_the_text_is_the_targets_whatever_is_settled_before_a_token_is_drawn() -> None:
    """Exactly, one token and two. A policy that looks at the token that it drops fails this, and so does a wrong residual."""
    assert apart(played(settled(whole))) < 1e-12
    assert apart(played(settled(unsure))) < 1e-12
    assert apart(played(peeking())) > 1e-3
    assert apart(played(settled(whole), residual=False)) > 1e-3


def test_the_chances_along_a_text_are_those_of_the_whole_play(script) -> None:
    """How often a draft's first tokens are the text's and are accepted, for each text."""
    blocks, found = script("blocks"), played(settled(whole))
    for text in product(IDS, repeat=LONGEST):
        ratio = np.array([Q[text[:i]][x] / P[text[:i]][x] for i, x in enumerate(text)])
        at_least = blocks.taken(SimpleNamespace(ratio=[ratio]), blocks.BLOCK, 0)
        for i in range(1, LONGEST + 1):
            own = sum(s for (n, told), s in found.items() if n >= i and told[:i] == text[:i])
            due = float(np.prod([P[text[:j]][text[j]] for j in range(i)]))
            assert own / due == pytest.approx(at_least[i])


def test_rounds_follow_one_another(script) -> None:
    """Two places behind a round that takes two tokens, one behind one that takes one; time is of the rounds that happen."""
    blocks = script("blocks")
    found = blocks.rounds([np.array([1.0, 0.5]), np.array([1.0]), np.array([1.0])], [1.0, 4.0, 2.0])
    assert (found.tokens, found.verifies, found.time) == (3.0, 2.5, 5.0)


def test_noise_that_draws_a_token_is_what_is_left_of_all_noise(script) -> None:
    """Drawn under the condition that the target draws the token, it agrees as often as the formula says."""
    places, chance = script("places"), np.random.default_rng(3)
    p, q = np.array([0.6, 0.3, 0.1, 0.0]), np.array([0.3, 0.0, 0.5, 0.2])
    for x in (0, 2):
        drawn = np.concatenate([places.drawn_with(p, q, x, chance)[0] for _ in range(400)])
        assert (drawn == x).mean() == pytest.approx(places.coupled_at(p, q, x), abs=0.04)


def test_the_page_has_a_line_for_each_way(
    script,
    questions: Path,
    tiny_ascii: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that drafts for itself has all of its drafts accepted by all of them; what was recorded is used again."""
    blocks = script("blocks")
    monkeypatch.setattr(blocks, "WORTHS", (1.0,))
    words: list[Any] = [
        tiny_ascii,
        questions,
        f"{tiny_ascii}=0.8,1/0",
        "--every",
        1,
        "--tokens",
        14,
    ]
    words += ["--keep", tmp_path / "kept", "--out", tmp_path / "blocks"]
    blocks.main([str(word) for word in words])
    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines()[2:]]
    assert len(rows) == 2 * 3 * 4 + 5 * 3
    fours = [row for row in rows if row[3] == "4" and row[2] == "0.05"]
    assert all(float(row[6]) > 4.0 for row in fours)
    assert printed.strip() in (tmp_path / "blocks" / "README.md").read_text(encoding="utf-8")
    blocks.main([str(word) for word in words])
    assert capsys.readouterr().out == printed
