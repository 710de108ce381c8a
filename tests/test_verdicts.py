"""Verdicts on pairs: kept, shipped, found again, and followed."""

from __future__ import annotations

import logging
import math

import msgspec
import pytest

from pyspec.options import AnswerOptions, Speculation
from pyspec.profiles import Side
from pyspec.rules import Margin, PairRule, Strict, Window
from pyspec.sampling import Sampling
from pyspec.store.files import file_sha256
from pyspec.verdicts import (
    PairVerdict,
    PairVerdicts,
    keep_verdict,
    pair_rule,
    settings_of,
    shipped_path,
)

RULES = [
    Margin(confirm=1),
    Margin(theta=0.8, gap=2.0, kl=0.5, doubt=0.25),
    Margin(gap=math.inf, window=Window(1.0, 32)),
]


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """A target and a draft, and a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    target, draft = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    target.write_bytes(b"target")
    draft.write_bytes(b"draft")
    return target, draft


def verdict(pair, rule=None, *, drawn=False, **other):
    """A verdict on the pair."""
    given = {
        "target": file_sha256(pair[0]), "draft": file_sha256(pair[1]), "drawn": drawn,
        "rule": None if rule is None else settings_of(rule), "tried": "", "gain": 1.1, "answers": 9,
        "losses": {"nats": (0.01, 0.02)}, "day": "2026-11-23",
    }  # fmt: skip
    return PairVerdict(**given | other)


def found(pair):
    """What is allowed for the pair."""
    return pair_rule(pair[0], [Side(pair[1], 5)])


def test_nothing_known_is_strict(pair):
    """No file, no draft: strict at every temperature."""
    assert found(pair) == PairRule() == pair_rule(pair[0], [])
    assert PairRule().at(0.0) == PairRule().at(0.8) == Strict()


@pytest.mark.parametrize("rule", [*RULES, None])
@pytest.mark.parametrize("drawn", [False, True])
def test_what_is_kept_is_followed(pair, rule, drawn):
    """A rule comes back with every number, infinity and window included, and only for its kind of answers."""
    keep_verdict(verdict(pair, rule, drawn=drawn))
    allowed = rule if rule is not None else Strict()
    assert found(pair).at(0.8 if drawn else 0.0) == allowed
    assert found(pair).at(0.0 if drawn else 0.8) == Strict()


def test_a_later_verdict_takes_the_place_of_the_earlier(pair):
    """Of one kind of answers; the other kind's stays."""
    keep_verdict(verdict(pair, RULES[0]))
    keep_verdict(verdict(pair, RULES[1], drawn=True))
    keep_verdict(verdict(pair, None))
    assert (found(pair).greedy, found(pair).drawn) == (Strict(), RULES[1])


def test_a_shipped_verdict_is_followed_and_ones_own_goes_before_it(pair):
    """Beside the draft lies what came with it."""
    shipped = PairVerdicts([verdict(pair, RULES[0]), verdict(pair, RULES[0], target="0" * 64)])
    shipped_path(pair[1]).write_bytes(msgspec.json.encode(shipped))
    assert found(pair).greedy == RULES[0]
    keep_verdict(verdict(pair, None))
    assert found(pair).greedy == Strict()


def test_it_is_of_these_very_files(pair):
    """Another target or another draft is another pair."""
    keep_verdict(verdict(pair, RULES[0]))
    for each in pair:
        before = each.read_bytes()
        each.write_bytes(b"another")
        assert found(pair) == PairRule()
        each.write_bytes(before)


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'{"verdicts":[{}]}', b'{"verdicts":[],"format":2}', b"\xff\xfe"],
)
def test_a_damaged_file_is_one_warning_and_strict(pair, caplog, content):
    """And a new verdict is written over it."""
    path = keep_verdict(verdict(pair, RULES[0]))
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert found(pair) == PairRule()
    assert len(caplog.records) == 1
    keep_verdict(verdict(pair, RULES[0]))
    assert found(pair).greedy == RULES[0]


@pytest.mark.parametrize(
    "numbers", [{"gap": -1.0}, {"gape": 1.0}, {"window": [1.0]}, {"confirm": 99}]
)
def test_numbers_that_cannot_be_are_strict(pair, caplog, numbers):
    """A file by hand does not open a gate."""
    path = keep_verdict(verdict(pair))
    made = verdict(pair)
    made.rule = numbers
    path.write_bytes(msgspec.json.encode(PairVerdicts([made])))
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert found(pair) == PairRule()
    assert caplog.records


def test_a_grammar_is_strict_whatever_the_verdict_says():
    """And a call's own rule goes before the pair's."""
    own = PairRule(greedy=RULES[0])
    greedy = Sampling(temperature=0.0)
    assert AnswerOptions(greedy).rule(own) == RULES[0]
    assert AnswerOptions(greedy, grammar=object()).rule(own) == Strict()
    assert AnswerOptions(greedy, Speculation(verification=Strict())).rule(own) == Strict()
    assert AnswerOptions(Sampling(temperature=0.8)).rule(own) == Strict()
