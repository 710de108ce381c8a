"""The list of changed lines that tests must notice (mutants.py) is of this code."""

from __future__ import annotations

from pathlib import Path

import mutants
import pytest


@pytest.mark.parametrize("mutant", mutants.read_mutants(), ids=lambda mutant: mutant.name)
def test_a_mutants_line_stands_once_in_its_file(mutant: mutants.Mutant) -> None:
    """A change of the code goes with one of the list, and the tests that it names exist."""
    assert (mutants.ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert all(Path(mutants.ROOT, path).exists() for path in mutant.tests.split())
