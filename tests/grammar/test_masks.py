"""Grammars in processes of their own: the same masks as llama.cpp's, and an end to what takes too long."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp.llama_grammar import ARITHMETIC_GBNF, JSON_GBNF
from waiting import wait

from pyspec.errors import InputError
from pyspec.grammar import masks
from pyspec.grammar._child import CANDIDATES
from pyspec.grammar.gbnf import MOST_BYTES, MOST_DEPTH, bounded, schema_grammar
from pyspec.grammar.masks import GrammarHost, convert_schema

pytestmark = pytest.mark.skipif(not masks.ISOLATED, reason="processes cannot be copied here")

BOMBS = {
    "nested repetitions": 'root ::= ((("a"?){100}){100}){100}',
    "60,000 alternatives": "root ::= " + " | ".join(f'"a{i}"' for i in range(60_000)),
    "hidden left recursion": 'root ::= x\nx ::= y x "a" | "b"\ny ::= z\nz ::= "" | ""',
}
LATER = 'root ::= "a" root "b" | "a" root "c" | "a"'
"""Each further letter doubles what llama.cpp keeps of it."""


@pytest.fixture(scope="module")
def llama(tiny_ascii: Path) -> Iterator[Any]:
    """A model of 94 characters."""
    llm = llama_cpp.Llama(str(tiny_ascii), n_ctx=64, verbose=False)
    yield llm
    llm.close()


@pytest.mark.parametrize("text", [JSON_GBNF, ARITHMETIC_GBNF, 'root ::= [a-c]+ "." | "x" root'])
def test_masks_are_llama_cpps(text: str, llama: Any) -> None:
    """Token after token what a sampler in this process bars."""
    vocab = llama._model.vocab
    here = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    rng = np.random.default_rng(1)
    with GrammarHost.of(llama).open(text) as process:
        for _ in range(24):
            rows = np.zeros(llama.n_vocab(), dtype=CANDIDATES)
            rows["id"] = np.arange(len(rows))
            data = rows.ctypes.data_as(llama_cpp.llama_token_data_p)
            array = llama_cpp.llama_token_data_array(
                data=data, size=len(rows), selected=-1, sorted=False
            )
            llama_cpp.llama_sampler_apply(here, llama_cpp.ctypes.byref(array))
            barred = rows["logit"] == -np.inf
            assert process.wait(30)
            assert process.error == ""
            found = np.zeros(len(rows), bool) if process.barred is None else process.barred
            assert found[: len(rows)].tolist() == barred.tolist()
            token = int(rng.choice(np.flatnonzero(~barred)))
            if llama_cpp.llama_vocab_is_eog(vocab, token):
                break
            llama_cpp.llama_sampler_accept(here, token)
            process.accept(token)
    llama_cpp.llama_sampler_free(here)


@pytest.mark.parametrize("name", BOMBS)
def test_grammars_without_end_are_refused(name: str, llama: Any) -> None:
    """Whatever they would have taken of time and memory; asked again, the answer is known."""
    host = GrammarHost.of(llama)
    with pytest.raises(InputError, match="grammar"):
        host.check(BOMBS[name])
    opened = host.open
    host.open = None  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(InputError, match="grammar"):
            host.check(BOMBS[name])
    finally:
        host.open = opened  # type: ignore[method-assign]


def test_one_that_explodes_later_ends_then(llama: Any) -> None:
    """The first masks are quick; the process ends at a later one, and nothing else does."""
    (token,) = llama.tokenize(b"a", add_bos=False)
    with GrammarHost.of(llama).open(LATER) as process:
        process.begun()
        for _ in range(40):
            process.accept(token)
            assert process.wait(30)
        assert "too long" in process.error


STEP = """
from time import process_time, sleep
from pyspec.grammar._child import Patience
patience = Patience()
patience.begin(0.1)
{work}
patience.end()
"""


def test_a_step_may_wait_for_a_processor() -> None:
    """The limit is of processor time: a machine with much else to do ends no answer."""
    assert _status_of_a_step("sleep(0.5)") == 0


def test_a_step_may_not_work_too_long() -> None:
    """The system then ends the process."""
    assert _status_of_a_step("while process_time() < 5: pass") == -signal.SIGPROF


def _status_of_a_step(work: str) -> int:
    return subprocess.run([sys.executable, "-c", STEP.format(work=work)], check=False).returncode


def test_a_parse_error_is_told_without_its_control_characters(
    llama: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """llama.cpp prints the whole grammar; here a line of it is escaped and cut, and nothing is printed."""
    with pytest.raises(InputError) as caught:
        GrammarHost.of(llama).check("root ::= \x1b]0;forged\x07" + "x" * 5000)
    assert "\\x1b" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert "forged" not in capfd.readouterr().err


def test_a_schema_that_takes_the_converter_too_long() -> None:
    """44 seconds in this process, the GIL held."""
    names = {f"p{i}": {} for i in range(500)}
    schema = {"allOf": [{"$ref": "#/$defs/a"}] * 2000, "$defs": {"a": {"properties": names}}}
    with pytest.raises(InputError, match="takes too long"):
        schema_grammar(schema)


def test_large_schemas_are_converted_as_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same converter, elsewhere."""
    schema = {"type": "object", "properties": {"a": {"enum": ["b" * 5000]}}, "required": ["a"]}
    away = schema_grammar(schema)
    monkeypatch.setattr("pyspec.grammar.gbnf.SMALL_SCHEMA", MOST_BYTES)
    assert schema_grammar(schema) == away
    assert convert_schema.cache_info().currsize > 0


@given(st.text(alphabet='[]"()<>\\#\n\r| a:=', max_size=60))
def test_depth_is_never_more_than_is_counted(text: str) -> None:
    """What is quoted in one way hides no bracket of the other."""
    for end in ('"', "]", ">", "\n", ""):
        whole = text + end + "(" * (MOST_DEPTH + 1)
        if _depth(whole) > MOST_DEPTH:
            with pytest.raises(InputError):
                bounded(whole)


def _depth(text: str) -> int:
    """Levels of brackets, by the rules of llama.cpp's parser, as far as it would come."""
    at = depth = deepest = 0
    skip: dict[str, Callable[[int], int]] = {
        '"': lambda i: _until(text, i, '"'),
        "[": lambda i: _until(text, i, "]"),
        "<": lambda i: text.find(">", i) + 1 or len(text),
        "#": lambda i: next((k for k in range(i, len(text)) if text[k] in "\r\n"), len(text)),
    }
    while at < len(text):
        char = text[at]
        depth += {"(": 1, ")": -1}.get(char, 0)
        deepest = max(deepest, depth)
        at = skip[char](at + 1) if char in skip else at + 1
    return deepest


def _until(text: str, at: int, end: str) -> int:
    while at < len(text) and text[at] != end:
        at += 2 if text[at] == "\\" else 1
    return at + 1


@pytest.mark.parametrize("char", ["[", '"', "<", "#", "\\", '["', "("])
def test_bounds_are_found_in_one_pass(char: str) -> None:
    """20 KB of one bracket took 16 s: each character began a search to the end. Twice the text, twice the steps."""
    text = char * (MOST_BYTES // len(char))
    try:
        assert bounded(text) == text
    except InputError as error:
        assert "deep" in str(error)  # noqa: PT017 - one of them may be refused


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no other process' priority is shown here"
)
def test_a_slow_first_step_gives_way(llama: Any) -> None:
    """While it is at work, so that decodes go before it."""
    host = GrammarHost.of(llama)
    host.check('root ::= "a"')
    assert host._child is not None
    parent = host._child.pid
    with host.open(BOMBS["nested repetitions"]):
        wait(lambda: any(nice == 10 for nice in niceness(parent)))


def niceness(parent: int) -> list[int]:
    """Of the children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(fields[16]))
    return found
