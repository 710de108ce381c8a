"""Questions: Spec-Bench's format, the shipped set, and the choice among them."""

from collections import Counter

import pytest
from measure.questions import load_questions, parse_questions, select

from pyspec.errors import InputError, OptionError

LINE = b'{"question_id": %d, "category": "%s", "turns": ["a"], "reference": ["x"]}'


def test_shipped_set_is_eight_kinds_of_six(tmp_path):
    questions = load_questions()
    assert [*Counter(q.category for q in questions).values()] == [6] * 8
    assert sum(len(q.turns) > 1 for q in questions) >= 8
    with pytest.raises(InputError, match="cannot read"):
        load_questions(tmp_path / "none.jsonl")


@pytest.mark.parametrize(("lines", "message"), [
    ([b"{"], "line 1"),
    ([LINE % (1, b"a"), LINE % (1, b"a")], "line 2: question 1 appears twice"),
    ([b'{"question_id": 1, "category": "a", "turns": []}'], "has no turns"),
    ([b'{"question_id": 1, "category": "a", "turns": "x"}'], "line 1"),
    ([b'{"question_id": 1, "category": "\xff", "turns": ["x"]}'], "line 1"),
    ([], "contains no question"),
])  # fmt: skip
def test_what_is_no_question_is_refused(lines, message):
    with pytest.raises(InputError, match=message):
        parse_questions(lines, "f")


def test_select_interleaves_categories_and_limits_each():
    lines = [LINE % (i, b"b" if i > 2 else b"a") for i in range(6)]
    chosen = select(parse_questions(lines, "f"), limit=2)
    assert [q.question_id for q in chosen] == [0, 3, 1, 4]
    with pytest.raises(OptionError, match="there are: a, b"):
        select(chosen, categories=["z"])
