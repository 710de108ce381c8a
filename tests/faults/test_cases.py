"""The table of cases is true: thirty, each with tests that exist."""

import ast
from pathlib import Path

import pytest
from faults.cases import CASES

TESTS = Path(__file__).parents[1]


def test_all_numbers_are_there():
    assert list(CASES) == list(range(1, 31))


@pytest.mark.parametrize("number", CASES)
def test_a_case_has_its_tests(number):
    for where in (CASES[number].called, CASES[number].command):
        if where is None or where.startswith("none: "):
            continue
        file, _, name = where.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
