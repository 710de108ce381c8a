"""Verdicts on pairs: kept, shipped, found again, and followed."""

from __future__ import annotations

import logging
import math
import re

import msgspec
import pytest
from helpers import tiny
from helpers.running import run
from measure.verdicts import keep_verdict, settings_of

from pyspec.engine.profiles import SideFile
from pyspec.engine.verdicts import PairVerdict, PairVerdicts, pair_rule
from pyspec.llama.options import AnswerOptions, Speculation
from pyspec.sampling.chain import Sampling
from pyspec.sampling.verification import Margin, PairRule, Strict
from pyspec.screen.words import speed_sentence as sentence
from pyspec.store.files import file_sha256

RULES = [
    Margin(confirm=1),
    Margin(theta=0.8, gap=2.0),
    Margin(gap=math.inf, confirm=2),
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
    given = {
        "target": file_sha256(pair[0]), "draft": file_sha256(pair[1]), "drawn": drawn,
        "rule": None if rule is None else settings_of(rule), "tried": "", "gain": 1.1, "answers": 9,
        "losses": {"nats": (0.01, 0.02)}, "day": "2026-11-23",
    }  # fmt: skip
    return PairVerdict(**given | other)


def found(pair):
    return pair_rule(pair[0], [SideFile(pair[1], 5)])


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
    pair[1].with_suffix(".verdict.json").write_bytes(msgspec.json.encode(shipped))
    assert found(pair).greedy == RULES[0]
    keep_verdict(verdict(pair, None))
    assert found(pair).greedy == Strict()


def test_it_is_of_these_very_files(pair):
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
    path = keep_verdict(verdict(pair, RULES[0]))
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "pyspec"):
        assert found(pair) == PairRule()
    assert len(caplog.records) == 1
    keep_verdict(verdict(pair, RULES[0]))
    assert found(pair).greedy == RULES[0]


@pytest.mark.parametrize("numbers", [{"gap": -1.0}, {"gape": 1.0}, {"kl": 1.0}, {"confirm": 99}])
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


# -- what is said behind an answer --------------------------------------------------------------------------------------

WIDE = Margin(theta=0.0, gap=math.inf)
SAID = re.compile(r"tokens/s.*, [1-9]\d* tokens? relaxed, as measured for this pair$", re.MULTILINE)


@pytest.fixture
def measured(pair, tiny_ascii):
    """A target and a draft that is a worse copy of it, with a verdict that lets greedy answers relax a great deal."""
    near = tiny.write(pair[1].with_name("near.gguf"), tokens=tiny.ASCII, noise=0.15)
    keep_verdict(verdict((tiny_ascii, near), WIDE))
    return tiny_ascii, near


def door(name, measured, *more, stdin=b""):
    """What a command answers and says, opened on the pair."""
    target, draft = map(str, measured)
    words = ["--trust-model", "-t", "1", "-n", "60", "--length", "fixed:4", "--temp", "0"]
    done = run(name, "-m", target, "--draft", draft, *words, *more, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "words", "stdin"), [("generate", ["abc"], b""), ("chat", [], b"abc\n")]
)
def test_a_command_says_what_the_verdict_relaxed(measured, name, words, stdin):
    """By default; a rule that was asked for by name needs no such word, and --verify strict relaxes nothing."""
    assert SAID.search(door(name, measured, *words, stdin=stdin)[1])
    asked = "--verify", "margin", "--theta", "0", "--gap", "inf"
    for other in (asked, ("--verify", "strict"), ("--temp", "0.8")):
        said = door(name, measured, *words, *other, stdin=stdin)[1]
        assert "tokens/s" in said
        assert "measured for this pair" not in said


def test_a_command_gives_the_targets_own_text_where_nothing_was_measured(measured):
    """The default and strict are one; the verdict's rule is another text."""
    relaxed, _ = door("generate", measured, "abc")
    strict, _ = door("generate", measured, "abc", "--verify", "strict")
    keep_verdict(verdict(measured, None))
    assert door("generate", measured, "abc")[0] == strict != relaxed


def test_the_class_says_it_where_it_was_asked_to_follow(measured, open_llama):
    """`verification="auto"`; the class's own default stays strict."""
    target, draft = measured
    llm = open_llama(target, draft=draft, verification="auto")
    result = llm("abc", max_tokens=60, temperature=0.0)
    block = result["speculation"]
    assert (block["rule_measured"], block["relaxed"] > 0) == (True, True)
    assert SAID.search(sentence(block, 100.0))
    llm("abc", max_tokens=60, temperature=0.0, speculation=Speculation(verification=WIDE))
    assert (llm.last_speculation["rule_measured"], llm.last_speculation["relaxed"] > 0) == (
        False,
        True,
    )
    own = open_llama(target, draft=draft)
    own("abc", max_tokens=60, temperature=0.0)
    assert (own.last_speculation["rule_measured"], own.last_speculation["relaxed"]) == (False, 0)
