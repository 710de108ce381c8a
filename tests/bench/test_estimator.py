"""`bench/estimator.py` on what is known: a word that tells all, one that tells nothing, and a tiny model as its own draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def tokens(n: int, seed: int) -> dict[str, np.ndarray]:
    """Accepted where the lead says so; every other word is chance."""
    draw = np.random.default_rng(seed)
    lead = draw.uniform(0.0, 4.0, n)
    chance = {
        name: draw.uniform(0.1, 0.9, n) for name in ("p", "largest", "entropy", "mass", "recent")
    }
    return {
        "accepted": (draw.uniform(size=n) < 1.0 / (1.0 + np.exp(4.0 - 2.0 * lead))).astype(float),
        "lead": lead,
        **chance,
    }


def test_what_tells_loses_least(script) -> None:
    """The lead comes near the loss of who knows each chance; words of chance are no better than knowing nothing."""
    estimator = script("estimator")
    texts = [tokens(400, seed) for seed in range(10)]
    losses = estimator.judge("made", 1.0, texts).losses
    rest = {name: np.concatenate([one[name] for one in texts[1::2]]) for name in texts[0]}
    known = estimator.loss(rest["accepted"], 1.0 / (1.0 + np.exp(4.0 - 2.0 * rest["lead"])))
    assert losses["lead of the drawn token, with noise"] < known + 0.02
    assert losses["all of them"] < known + 0.02
    for word in ("entropy", "largest probability", "accepted so far"):
        assert losses[word] > losses["nothing known"] - 0.005


def test_a_model_that_drafts_for_itself_is_always_accepted(
    script, questions: Path, tiny_ascii: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its draws are the text's, at each temperature, since the noise is the same; the page has the same table."""
    out = tmp_path / "estimator"
    words = [str(tiny_ascii), str(questions), str(tiny_ascii), "--every", "1", "--tokens", "12"]
    chain = ["--top-k", "0", "--top-p", "1.0"]
    script("estimator").main([*words, *chain, "--temps", "0.7,1.3", "--out", str(out)])
    printed = capsys.readouterr().out
    rows = [row.strip("| ").split(" | ") for row in printed.splitlines()]
    assert rows[0][1:] == ["ascii, 0.7", "ascii, 1.3"]
    assert rows[3][1:] == ["1.000", "1.000"]
    assert printed in (out / "README.md").read_text(encoding="utf-8")
