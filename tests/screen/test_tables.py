"""Tables fit the terminal; of their columns only the last is folded."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from pyspec.screen.tables import TextTable, print_table

LONG = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"
HEAD = ("name", "role", "GB", "what")
ROWS = [[LONG, "target", "4.92", "Llama 3.1 8B Instruct"], ["small", "draft", "0.02", "a head"]]
MODELS = TextTable(HEAD, ROWS, words=("name", "role", "what"), first=("name", "GB", "role", "what"))


def printed(table: TextTable, width: int, *, terminal: bool = True, markdown: bool = True) -> str:
    """What a console of so many cells shows."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, no_color=True)
    print_table(table, console, markdown=markdown)
    return out.getvalue()


@pytest.mark.parametrize("width", [20, 60, 70, 100])
def test_names_are_never_folded(width: int) -> None:
    """Columns go before a name does, and each row stays a line."""
    lines = printed(MODELS, width).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(LONG)


@pytest.mark.parametrize(("width", "heads"), [(60, 2), (70, 3), (80, 4), (90, 4)])
def test_a_narrow_terminal_gets_the_first_columns(width: int, heads: int) -> None:
    """In their order, the last text folded where a part of it fits."""
    fitting = MODELS.fitting(width)
    assert {*fitting.head} == {*MODELS.first[:heads]}
    assert fitting.width <= width


def test_the_last_text_is_folded_between_words() -> None:
    """Its further lines stand below its first, and nothing of it is lost."""
    long = "one layer that reads three of the target's, 8192 ids"
    table = replace(MODELS, rows=[["a model", "draft", "0.02", long]])
    _, first, second = printed(table, 60).splitlines()
    start = first.index("one")
    assert second[:start].isspace()
    assert f"{first[start:]} {second[start:]}" == long
    assert cell_len(first) <= 60


def test_a_wide_table_of_figures_is_turned() -> None:
    """Modes become columns, categories rows."""
    head = ("", *(f"category {i}" for i in range(9)))
    table = TextTable(head, [["plain", *["1.00"] * 9], ["strict", *["1.25"] * 9]])
    fitting = table.fitting(60)
    assert [*fitting.head] == ["", "plain", "strict"]
    assert fitting.rows[8] == ["category 8", "1.00", "1.25"]


def test_a_pipe_gets_markdown() -> None:
    text = printed(MODELS, 20, terminal=False)
    assert text.splitlines()[1] == "| --- | ---: | ---: | ---: |"
    assert "Llama 3.1 8B Instruct" in text


def test_a_pipe_gets_whole_lines_where_it_is_to_be_read() -> None:
    lines = printed(MODELS, 20, terminal=False, markdown=False).splitlines()
    assert len(lines) == 3
    assert lines[1].split()[-4:] == ["Llama", "3.1", "8B", "Instruct"]


@given(st.lists(st.text(min_size=1, max_size=9), min_size=4, max_size=4), st.integers(1, 80))
def test_what_is_shown_fits(cells: list[str], width: int) -> None:
    """But for the first column, which is never cut."""
    table = TextTable(HEAD, [cells], first=HEAD).fitting(width)
    assert table.width <= max(width, cell_len(cells[0]), cell_len("name"))


NEEDED = replace(MODELS, needed=3)


@pytest.mark.parametrize("width", [24, 40, 60])
def test_what_is_needed_stands_below_a_long_name(width: int) -> None:
    """Where it does not fit beside it; the name is whole, and so is what is needed."""
    lines = "\n".join(NEEDED.fitting(width).lines()).splitlines()
    assert lines[0] == "name"
    assert lines[1].split()[:2] == ["role", "GB"]
    assert lines[2] == LONG
    assert lines[3].split()[:2] == ["target", "4.92"]
    assert len(lines) == 6
    assert all(cell_len(line) <= width for line in lines if LONG not in line)


def test_what_is_needed_stands_beside_a_name_where_there_is_room() -> None:
    lines = printed(NEEDED, 70).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == [LONG, "target", "4.92"]
