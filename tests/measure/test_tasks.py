"""Questions: Spec-Bench's format, the shipped set, the choice among them; and modes as strings."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pyspec.errors import InputError, OptionError
from pyspec.measure.tasks import (
    load_questions,
    parse_mode,
    parse_modes,
    parse_questions,
    passes,
    select,
)
from pyspec.rules import Margin, Strict

LINE = b'{"question_id": %d, "category": "%s", "turns": ["a"], "reference": ["x"]}'


def test_shipped_set_is_eight_kinds_of_six() -> None:
    """The default set has the kinds it promises, and conversations among them."""
    questions = load_questions()
    assert set(Counter(q.category for q in questions).values()) == {6}
    assert len({q.category for q in questions}) == 8
    assert sum(len(q.turns) > 1 for q in questions) >= 8


def test_shipped_checks_are_known_and_one_a_turn() -> None:
    """Every check of the shipped set is of a known kind, and none lacks its turn."""
    checked = [q for q in load_questions() if q.check]
    assert len(checked) > 20
    for question in checked:
        assert len(question.check) == len(question.turns)
        for what in question.check:
            assert what is None or passes(what, "") is False


def test_spec_bench_lines_are_read() -> None:
    """Fields that Spec-Bench has beyond ours are passed over."""
    (question,) = parse_questions([LINE % (81, b"writing"), b"", b"  "], "f")
    assert (question.question_id, question.category, question.turns) == (81, "writing", ["a"])
    assert question.check_of(0) is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"{"], "line 1"),
        ([LINE % (1, b"a"), LINE % (1, b"a")], "line 2: question 1 appears twice"),
        ([b'{"question_id": 1, "category": "a", "turns": []}'], "has no turns"),
        ([b'{"question_id": 1, "category": "a", "turns": "x"}'], "line 1"),
        ([b'{"question_id": 1, "category": "\xff", "turns": ["x"]}'], "line 1"),
        ([], "holds no question"),
    ],
)
def test_what_is_no_question_is_refused(lines: list[bytes], message: str) -> None:
    """The sentence names the line."""
    with pytest.raises(InputError, match=message):
        parse_questions(lines, "f")


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """A path that is not there is no traceback."""
    with pytest.raises(InputError, match="cannot read"):
        load_questions(tmp_path / "none.jsonl")


def test_select_interleaves_categories_and_limits_each() -> None:
    """A run cut short has seen all categories."""
    lines = [LINE % (i, b"b" if i > 2 else b"a") for i in range(6)]
    chosen = select(parse_questions(lines, "f"), limit=2)
    assert [q.question_id for q in chosen] == [0, 3, 1, 4]


def test_select_takes_every_third_of_the_file() -> None:
    """`every` counts in the file, before categories are formed."""
    lines = [LINE % (i, b"a") for i in range(7)]
    chosen = select(parse_questions(lines, "f"), every=3)
    assert [q.question_id for q in chosen] == [0, 3, 6]


def test_an_unknown_category_is_refused_with_the_known_ones() -> None:
    """The hint lists what there is."""
    with pytest.raises(OptionError, match="there are: a"):
        select(parse_questions([LINE % (1, b"a")], "f"), categories=["z"])


# -- checks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "good", "bad"),
    [
        ({"kind": "json"}, 'Here:\n```json\n{"a": 1}\n```', '{"a": 1'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '{"b": 1}'),
        ({"kind": "json", "keys": ["a"]}, '{"a": 1}', '["a"]'),
        ({"kind": "list", "n": 2}, "Two:\n\n1. a\n2. b\n", "1. a\n2. b\n3. c"),
        ({"kind": "list", "n": 2}, "- a\n- b", "a\nb"),
        ({"kind": "copy", "text": "a b\nc"}, "Sure:\na b  \nc\n", "a  b\nc"),
        ({"kind": "number", "value": 1234}, "It is 2, so 1,234.", "1234 or 5"),
        ({"kind": "number", "value": -0.5}, "-0.5", "none"),
        ({"kind": "compiles"}, "```python\nx = 1\n```", "```python\nx = \n```"),
        ({"kind": "compiles"}, "x = 1", ""),
    ],
)  # fmt: skip
def test_each_kind_tells_good_from_bad(what: dict[str, Any], good: str, bad: str) -> None:
    """One answer that passes and one that does not."""
    assert passes(what, good) is True
    assert passes(what, bad) is False


def test_an_unknown_kind_is_refused() -> None:
    """A typing error in a questions file is not a failed answer."""
    with pytest.raises(InputError, match="unknown check 'jsn'"):
        passes({"kind": "jsn"}, "{}")


# -- modes -------------------------------------------------------------------------------------------------------------


def test_plain_does_not_speculate() -> None:
    """`plain` is decoding with speculation off."""
    assert parse_mode("plain").speculation.enabled is False


def test_parts_may_stand_in_any_order() -> None:
    """Rule, length and drafter are told apart by their words."""
    one, two = parse_mode("fixed:4+strict+model"), parse_mode("model+strict+fixed:4")
    assert (one.rule, one.length, one.drafting) == (two.rule, two.length, two.drafting)
    assert (one.rule, one.length, one.drafting) == (Strict(), "fixed:4", "model")


def test_margin_takes_its_limits() -> None:
    """theta, gap and budget follow slashes."""
    mode = parse_mode("margin/gap=inf/theta=0.84/budget=8")
    assert mode.rule == Margin(0.84, math.inf, 8.0)


@pytest.mark.parametrize(
    ("text", "exact"),
    [("plain", True), ("strict", True), ("margin", False), ("margin/theta=1", True)],
)
def test_exact_modes_are_those_without_an_open_gate(text: str, exact: bool) -> None:
    """Only these must equal plain decoding."""
    assert parse_mode(text).exact is exact


@pytest.mark.parametrize(
    "text",
    ["", "fast", "fixed:x", "margin/gap=a", "margin/speed=2", "strict/gap=1", "plain,plain",
     "margin/theta=2", "fixed:4+", "plain+strict"],
)  # fmt: skip
def test_nonsense_is_an_option_error(text: str) -> None:
    """No mode is guessed."""
    with pytest.raises(OptionError):
        parse_modes(text)
