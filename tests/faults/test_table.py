"""Thirty bad inputs and faults, by number, on the command line and on the class: each ends in an answer or a sentence.

Cases that need a terminal, a disk or a signal are held where those are; ELSEWHERE says where, and is checked.
"""

from __future__ import annotations

import ast
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from store.make_gguf import ARR, STR, U32, U64, Gguf, string, tiny_llama

from pyspec.cli.main import main
from pyspec.errors import (
    DraftMismatch,
    InputError,
    ModelInvalid,
    ModelNotFound,
    ModelRejected,
    ModelUnreadable,
    OptionError,
    PyspecError,
    TemplateError,
)
from pyspec.llama import SpeculativeLlama

SMALL: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "draft": "none", "companion": "none"}

ELSEWHERE = {
    13: ("batch/test_reading.py", "test_bad_utf8_fails_its_own_record_only"),
    16: ("cli/test_chat.py", "test_control_tokens_in_a_message_are_text"),
    17: ("batch/test_reading.py", "test_too_long_line_is_never_held"),
    18: ("cli/test_batch.py", "test_no_records_is_no_failure"),
    19: ("batch/test_reading.py", "test_bad_jsonl_fails_that_record_with_its_line"),
    20: ("batch/test_output.py", "test_file_that_appears_meanwhile_is_kept"),
    21: (
        "engine/test_faults.py",
        "test_prompt_longer_than_the_context_is_refused_before_any_decode",
    ),
    24: ("faults/test_injected.py", "test_an_end_anywhere_is_the_end"),
    25: ("engine/test_faults.py", "test_junk_of_a_drafter_is_left_out"),
    26: ("faults/test_injected.py", "test_a_failing_target_is_one_error"),
    27: ("faults/test_injected.py", "test_a_failing_allocation_is_one_error"),
    28: ("cli/test_generate.py", "test_ctrl_c_keeps_the_partial_answer"),
    29: ("batch/test_journal.py", "test_disk_full_keeps_whole_records"),
    30: ("cli/test_batch.py", "test_kill_at_random_moments_loses_and_doubles_nothing"),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial is remembered from one case to the next."""
    monkeypatch.setenv("PYSPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs `pyspec generate` on a file; its exit code and stderr, which must be one sentence where it failed."""

    def run(path: Path | str, *args: str, prompt: str = "a") -> tuple[int, str]:
        base = ["generate", prompt, "-m", str(path), "-n", "2", "-t", "1", "-c", "64", "--raw"]
        with pytest.raises(SystemExit) as end:
            main([*base, "--draft", "none", "--no-stats", *args])
        code, said = int(end.value.code or 0), capfd.readouterr().err.strip()
        assert "Traceback" not in said
        if code:
            assert said.startswith(("pyspec: ", "Usage: ", "Error: "))
        return code, said

    return run


def load(path: Path | str, **options: Any) -> SpeculativeLlama:
    """The class on a file."""
    return SpeculativeLlama(str(path), **{**SMALL, **options})


def changed(change: Callable[[Gguf], None]) -> bytes:
    """The bytes of a good model with one change."""
    made = tiny_llama()
    change(made)
    return made.build()


def _set(key: str, kind: int, value: Any) -> Callable[[Gguf], None]:
    return lambda made: made.kv.__setitem__(key, (kind, value))


def _words(words: list[str]) -> Callable[[Gguf], None]:
    return _set("tokenizer.ggml.tokens", ARR, (STR, words))


def _tensor(**fields: Any) -> Callable[[Gguf], None]:
    return lambda made: [setattr(made.tensors[1], k, v) for k, v in fields.items()] and None


def _nan(made: Gguf) -> None:
    made.tensors[2].data = struct.pack("<f", float("nan")) + made.tensors[2].data[4:]


GOOD = tiny_llama()
N_WORDS = len(GOOD.kv["tokenizer.ggml.tokens"][1][1])
FILES: list[tuple[str, bytes, type[PyspecError]]] = [
    ("03 empty", b"", ModelInvalid),
    ("03 four bytes", b"GGUF", ModelInvalid),
    ("03 random", bytes(range(256)) * 8, ModelInvalid),
    ("03 magic", changed(lambda m: setattr(m, "magic", b"GGML")), ModelInvalid),
    ("03 version 1", changed(lambda m: setattr(m, "version", 1)), ModelInvalid),
    ("03 version 99", changed(lambda m: setattr(m, "version", 99)), ModelInvalid),
    ("03 big-endian", changed(lambda m: setattr(m, "version", 3 << 24)), ModelInvalid),
    ("04 entries", changed(lambda m: setattr(m, "n_kv", 2**60)), ModelInvalid),
    ("04 tensors", changed(lambda m: setattr(m, "n_tensors", 2**60)), ModelInvalid),
    ("04 key", changed(lambda m: setattr(m, "extra_kv", struct.pack("<Q", 2**62))), ModelInvalid),
    (
        "04 array",
        changed(
            lambda m: m.__dict__.update(
                n_kv=len(m.kv) + 1, extra_kv=string("x") + struct.pack("<IIQ", ARR, U64, 2**40)
            )
        ),
        ModelInvalid,
    ),
    ("05 no layers", changed(_set("llama.block_count", U32, 0)), ModelInvalid),
    ("05 513 layers", changed(_set("llama.block_count", U32, 513)), ModelInvalid),
    ("05 no heads", changed(_set("llama.attention.head_count", U32, 0)), ModelInvalid),
    ("05 equal words", changed(_words(["<unk>", "<s>", "</s>"] + ["a"] * (N_WORDS - 3))), ModelInvalid),
    ("05 empty words", changed(_words([""] * N_WORDS)), ModelInvalid),
    ("06 half", GOOD.build()[: len(GOOD.build()) // 2], ModelInvalid),
    ("06 last byte", GOOD.build()[:-1], ModelInvalid),
    ("07 offset", changed(_tensor(offset=2**64 - 32)), ModelInvalid),
    ("07 overlap", changed(_tensor(offset=0)), ModelInvalid),
    ("07 shape", changed(_tensor(shape=(2**32, 2**32))), ModelInvalid),
    ("07 type", changed(_tensor(type=99)), ModelInvalid),
    ("08 nan", changed(_nan), ModelRejected),
    ("12 climbing part", changed(lambda m: m.kv.update({"split.count": (U32, 2), "general.name": (STR, "../x")})), ModelInvalid),
    ("12 missing part", changed(lambda m: m.kv.update({"split.count": (U32, 2), "split.no": (U32, 0)})), ModelInvalid),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "error"), [c[1:] for c in FILES], ids=[c[0] for c in FILES])
def test_bad_file(
    raw: bytes, error: type[PyspecError], tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """Cases 3 to 8 and 12: a typed error from the class, a sentence and exit code 1 from the command."""
    path = tmp_path / "bad-00001-of-00002.gguf"
    path.write_bytes(raw)
    with pytest.raises(error):
        load(path)
    assert command(path)[0] == 1


@pytest.mark.parametrize("role", ["draft", "companion"])
def test_bad_side_model(role: str, tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    """Cases 5 and 8 for drafts and companions."""
    path = tmp_path / "side.gguf"
    path.write_bytes(changed(_nan))
    options = {"draft": str(tiny_draft), "companion": "none"} | {role: str(path)}
    with pytest.raises(ModelRejected):
        load(tiny_target, **options)


@pytest.mark.parametrize("kind", ["01 missing", "01 folder", "02 fifo", "02 socket", "02 device"])
def test_no_file(kind: str, tmp_path: Path, command: Callable[..., tuple[int, str]]) -> None:
    """Cases 1 and 2: nothing is opened that is no regular file."""
    path = tmp_path / "x.gguf"
    if "folder" in kind:
        path.mkdir()
    elif "fifo" in kind:
        os.mkfifo(path)
    elif "device" in kind:
        path = Path("/dev/zero")
    elif "socket" in kind:
        os.chdir(tmp_path)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("x.gguf")
    with pytest.raises(ModelNotFound if "missing" in kind else ModelUnreadable):
        load(path)
    assert command(path)[0] == 1


def test_09_file_that_changes_while_open(tmp_path: Path) -> None:
    """Without mmap the weights are in memory: a file cut short meanwhile changes nothing."""
    path = tmp_path / "m.gguf"
    path.write_bytes(GOOD.build())
    with load(path, use_mmap=False) as llm:
        before = llm.create_completion("abcd", max_tokens=4, temperature=0)["choices"]
        os.truncate(path, 100)
        llm.reset()
        assert llm.create_completion("abcd", max_tokens=4, temperature=0)["choices"] == before


@pytest.mark.parametrize(
    "template", ["{{ 'a'*10**9 }}", "{% for %}", "{{" + "(" * 3000 + ")" * 3000 + "}}"]
)
def test_10_hostile_template(
    template: str, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """It is no harm to load; a chat that needs it is one error, and the model goes on."""
    path = tmp_path / "m.gguf"
    path.write_bytes(changed(_set("tokenizer.chat_template", STR, template)))
    with load(path) as llm:
        with pytest.raises(TemplateError):
            llm.create_chat_completion([{"role": "user", "content": "a"}])
        assert llm.create_completion("a", max_tokens=1)
    assert command(path)[0] == 0


def test_11_another_vocabulary(tmp_path: Path, tiny_target: Path) -> None:
    """A companion is refused by the first token that differs; a draft is translated, and the text is the target's."""
    path = tmp_path / "draft.gguf"
    path.write_bytes(GOOD.build())
    with pytest.raises(DraftMismatch, match="another token 3"):
        load(tiny_target, draft=str(tiny_target), companion=str(path))
    texts = []
    for draft in ("none", str(path)):
        with load(tiny_target, draft=draft, length="fixed:4") as llm:
            answer = llm.create_completion("abc", max_tokens=12, temperature=0)
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]


def test_14_bytes_that_are_no_text(
    tiny_ascii: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """A prompt with half a surrogate is one error of the caller."""
    assert command(tiny_ascii, prompt="a\udcff")[0] == 2
    assert command(tiny_ascii, "-s", "a\udcff")[0] == 2
    with load(tiny_ascii) as llm, pytest.raises(InputError):
        llm.create_completion("a\udcff")


@pytest.mark.parametrize("text", ["a\0", "é", "\ufffd"])
def test_15_what_a_vocabulary_cannot_spell(
    text: str, tiny_ascii: Path, tmp_path: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """Without byte tokens such a text is refused; with them it is answered."""
    with load(tiny_ascii) as llm:
        with pytest.raises(InputError, match="cannot spell"):
            llm.create_completion(text)
        assert llm.create_completion("a", max_tokens=1)
    assert command(tiny_ascii, prompt=text)[0] == 2
    path = tmp_path / "bytes.gguf"
    path.write_bytes(GOOD.build())
    with load(path) as llm:
        assert llm.create_completion(text, max_tokens=1)


def test_15_ids_that_are_no_tokens(tiny_ascii: Path) -> None:
    """llama.cpp would throw through C."""
    with load(tiny_ascii) as llm:
        for token in (-1, 10**6):
            with pytest.raises(InputError, match="no token"):
                llm.detokenize([token])


def test_24_end_inside_a_draft(tmp_path: Path) -> None:
    """Nothing behind an end of generation is emitted or kept, though it was drafted and would be accepted."""
    prompt = [tiny.A, tiny.A + 1, tiny.A + 2]
    with load(tiny.write(tmp_path / "endless.gguf")) as llm:
        text = llm.generate(prompt, temp=0.0)
        free = [next(text) for _ in range(20)]
        text.close()
    end = next(token for token in free[3:] if token not in free[:3])
    path = tiny.write(tmp_path / "ends.gguf", eos=end)
    with load(path, draft=str(path), length="fixed:8") as llm:
        assert list(llm.generate(prompt, temp=0.0)) == free[: free.index(end) + 1]
        assert llm.n_tokens <= len(prompt) + free.index(end) + 1


def test_22_context_fills(tiny_ascii: Path, command: Callable[..., tuple[int, str]]) -> None:
    """An answer that fills the context ends, with its text."""
    with load(tiny_ascii, draft="lookup") as llm:
        answer = llm.create_completion("ab" * 20, max_tokens=10_000, temperature=0)
    assert answer["usage"]["total_tokens"] >= 60
    assert command(tiny_ascii, "-n", "-1")[0] == 0


FILLED = ["-n", "-1", "--temp", "0", "-t", "1", "--trust-model", "--draft", "lookup"]


@pytest.mark.parametrize("asked", [17, 64, 300, 1000])
@pytest.mark.parametrize("name", ["generate", "chat"])
def test_22_context_fills_a_command(
    tiny_ascii: Path,
    asked: int,
    name: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """llama.cpp rounds a context up to 256; all of it is filled, the text kept, and the reason said."""
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    os.close(writer)
    monkeypatch.setenv("PYSPEC_CHATS", "")
    raw = ["--raw"] if name == "generate" else []
    with os.fdopen(reader) as stdin, monkeypatch.context() as patched:
        patched.setattr("sys.stdin", stdin)
        with pytest.raises(SystemExit) as end:
            main([name, "-m", str(tiny_ascii), "-c", str(asked), *FILLED, *raw])
    answer, said = capfd.readouterr()
    n_ctx = -(-asked // 256) * 256
    assert end.value.code in (0, None)
    assert f"the context of {n_ctx} tokens is full" in said
    assert (
        len(answer.removesuffix("\n")) >= n_ctx - 60
    )  # a chat's prompt has words around the message


@pytest.mark.parametrize(
    "option",
    [
        {"n_ctx": 2**31 - 1}, {"n_ctx": 99_999_999_999}, {"n_ctx": -5}, {"n_threads": 20_000}, {"n_threads": -1},
        {"n_gpu_layers": -5}, {"n_batch": 0}, {"draft_n_gpu_layers": -7},
    ],
    ids=str,
)  # fmt: skip
def test_23_ranges_of_the_class(option: dict[str, int], tiny_ascii: Path) -> None:
    """Outside its range an option is refused before anything is loaded."""
    with pytest.raises(OptionError, match=next(iter(option))):
        load(tiny_ascii, **option)


@pytest.mark.parametrize(
    "option",
    ["-c 2147483647", "-c 99999999999", "-t 99999999999", "-t 20000", "-ngl -5", "--repeat-penalty nan",
     "--repeat-penalty 0", "--repeat-penalty -1", "--temp nan", "--temp -1", "--top-p 0", "--min-p 2",
     "--draft-max -1", "-n -2"],
)  # fmt: skip
def test_23_ranges_of_the_command(
    option: str, tiny_ascii: Path, command: Callable[..., tuple[int, str]]
) -> None:
    """The same, with exit code 2."""
    assert command(tiny_ascii, *option.split())[0] == 2


@pytest.mark.parametrize("option", ["top_p", "min_p", "repeat_penalty", "temperature"])
def test_23_ranges_of_a_call(option: str, tiny_ascii: Path) -> None:
    """A call's sampling options too."""
    with load(tiny_ascii) as llm, pytest.raises(OptionError, match=option):
        llm.create_completion("a", **{option: float("nan")})


@pytest.mark.parametrize(
    "text", ["root ::= [", 'root ::= root "a"', "root ::= " + "(" * 20_000, 'root ::= "\udcff"']
)
def test_grammars_that_cannot_be_parsed(text: str, tiny_ascii: Path) -> None:
    """llama.cpp would go on with none, or exhaust the stack."""
    from llama_cpp import LlamaGrammar

    with load(tiny_ascii) as llm, pytest.raises(InputError, match="grammar"):
        llm.create_completion("a", grammar=LlamaGrammar.from_string(text), max_tokens=2)


IN_A_SCRIPT = """
import sys
from pyspec.errors import PyspecError
from pyspec.llama import SpeculativeLlama
try:
    with SpeculativeLlama(sys.argv[1], n_threads=1, draft="none") as llm:
        llm.create_completion("a", max_tokens=2)
except PyspecError as error:
    sys.exit(f"pyspec: {error}")
"""


@pytest.mark.parametrize("megabytes", [200, 400, 800, 1200])
@pytest.mark.parametrize("entry", ["command", "class"])
def test_27_little_memory(megabytes: int, entry: str, smollm2: str) -> None:
    """Under a limit on address space both answer, or say one sentence."""
    import resource
    import subprocess
    import sys

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [
        "-m",
        "pyspec",
        "generate",
        "a",
        "-m",
        smollm2,
        "-n",
        "2",
        "-t",
        "1",
        "--draft",
        "none",
    ]
    words = command if entry == "command" else ["-c", IN_A_SCRIPT, smollm2]
    done = subprocess.run(
        [sys.executable, *words], preexec_fn=limit, capture_output=True, timeout=120, check=False
    )
    assert done.returncode in (0, 1), done.stderr[-500:]
    assert b"Traceback" not in done.stderr


def _functions(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node.name


def test_every_case_has_its_test() -> None:
    """Thirty of thirty, here or where ELSEWHERE says."""
    here = Path(__file__)
    for file, name in ELSEWHERE.values():
        assert name in set(_functions(here.parents[1] / file))
    numbered = {int(c[0][:2]) for c in FILES} | {1, 2} | {
        int(name[5:7]) for name in _functions(here) if name[5:7].isdigit()
    }  # fmt: skip
    assert numbered | set(ELSEWHERE) == set(range(1, 31))
