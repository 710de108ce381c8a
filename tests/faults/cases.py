"""The thirty bad inputs and faults that pyspec answers, or ends with one sentence, and the tests that hold each of them.

A test is written FILE::NAME, its file below tests/. `called` are those through the classes (`SpeculativeLlama`, and `Batch`
where the case is a batch's), `command` those through the command line. A case that one of the two cannot meet says why.
`test_cases.py` checks that each test exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pyspec.llama.speculative import SpeculativeLlama


class Case(NamedTuple):
    """what: the input or fault, and what has to come of it. command: None where `called` holds both."""

    what: str
    called: str
    command: str | None = None


FILE, NO_FILE = "faults/test_files.py::test_bad_file", "faults/test_files.py::test_no_file"
FILES, ANSWERS, INJECTED = (
    f"faults/test_{name}.py::test_" for name in ("files", "answers", "injected")
)
READING, JOURNAL, BATCH = (
    "batch/test_reading.py::test_",
    "batch/test_journal.py::test_",
    "cli/test_batch.py::test_",
)
GENERATE, ENGINE = "cli/test_generate.py::test_", "engine/test_faults.py::test_"

CASES = {
    # model files
    1: Case("no file, a folder, not readable: named", NO_FILE),
    2: Case("FIFO, socket, device: never opened", NO_FILE),
    3: Case("empty, short, random, wrong magic, version or byte order: no GGUF", FILE),
    4: Case("counts and lengths beyond the file: refused by field", FILE),
    5: Case("layers, heads or words that llama.cpp aborts on: refused", FILE),
    6: Case("a file that was cut: refused", FILE),
    7: Case("tensors whose offsets, shapes or types cannot be: refused", FILE),
    8: Case("weights that are no numbers: refused", FILE),
    9: Case("cut while it is open: without mmap nothing changes", FILES + "09_file_that_changes_while_open"),
    10: Case("a hostile chat template: one error, out of a child with limits", FILES + "10_hostile_template"),
    11: Case("another vocabulary: named by its first other token", FILES + "11_another_vocabulary"),
    12: Case("a part of a split file that is not there: refused", FILE),
    # texts and prompts
    13: Case("bytes that are not UTF-8: by byte and line",
             READING + "bad_utf8_names_byte_and_line", BATCH + "failed_records_end_with_3"),
    14: Case("arguments and stdin that are not UTF-8: refused", ANSWERS + "14_bytes_that_are_no_text"),
    15: Case("NUL and what a vocabulary cannot spell: bytes, or refused", ANSWERS + "15_what_a_vocabulary_cannot_spell"),
    16: Case("special tokens in a message: text",
             "text/test_template.py::test_any_text_comes_back", "cli/test_chat.py::test_control_tokens_in_a_message_are_text"),
    17: Case("a line of 100 MB: refused and never held",
             READING + "too_long_line_is_skipped_whole_and_never_held", GENERATE + "a_prompt_that_cannot_be_read_is_refused"),
    18: Case("no records, blank lines, BOM, CRLF: a note, or the lines",
             READING + "lines", BATCH + "an_empty_input_has_failed"),
    19: Case("bad JSON lines: each its own failure, by line",
             READING + "bad_jsonl_fails_that_record_with_its_line", BATCH + "failed_records_end_with_3"),
    20: Case("an output that is an input, a link, or another's: kept",
             "batch/test_output.py::test_file_that_appears_meanwhile_is_kept", BATCH + "expected_errors_are_one_sentence"),
    # answers
    21: Case("a prompt longer than the context: refused before any decode",
             ENGINE + "prompt_longer_than_the_context_is_refused_before_any_decode",
             GENERATE + "a_prompt_that_cannot_be_read_is_refused"),
    22: Case("the context fills inside an answer: its text stays",
             "llama/test_ends.py::test_a_context_is_filled_to_its_end", ANSWERS + "22_context_fills_a_command"),
    23: Case("options out of range: refused before a model is loaded",
             ANSWERS + "23_ranges_of_the_class", ANSWERS + "23_ranges_of_the_command"),
    24: Case("an end inside an accepted draft: nothing behind it",
             INJECTED + "an_end_anywhere_is_the_end"),
    25: Case("a drafter that raises, or gives what is no token: left out",
             ENGINE + "junk_of_a_drafter_is_left_out", "none: a drafter of one's own is a Python object"),
    26: Case("any decode fails, once or from there on: one error, and the next answer is right",
             INJECTED + "a_failing_target_is_one_error", INJECTED + "a_failing_target_is_one_sentence"),
    27: Case("little memory: an answer or one error; each allocation that fails is native/tests/test_faults.c's",
             ANSWERS + "27_little_memory"),
    28: Case("Ctrl-C and SIGTERM, in a prompt, an answer, a batch: what there is stays",
             ENGINE + "cancel_in_an_answer_keeps_its_text", "cli/test_streams.py::test_a_signal_while_the_prompt_is_read"),
    # batches
    29: Case("the disk is full: whole records stay, and how to go on is said",
             JOURNAL + "disk_full_keeps_whole_records", BATCH + "disk_full_ends_with_a_sentence"),
    30: Case("kill -9, and the same again: nothing lost, nothing twice",
             JOURNAL + "every_cut_is_recovered", BATCH + "kill_at_random_moments_loses_and_doubles_nothing"),
}  # fmt: skip


def load(path: Path | str, **options: Any) -> SpeculativeLlama:
    small = {"n_ctx": 64, "n_threads": 1, "draft": "none", "companion": "none"}
    return SpeculativeLlama(str(path), **{**small, **options})
