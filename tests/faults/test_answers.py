"""Cases 14 to 27 of `cases.py`, texts, options and memory: each ends in an answer or a sentence."""

import resource
import subprocess
import sys

import pytest
from faults.cases import load
from helpers.make_gguf import tiny_llama
from helpers.running import run
from helpers.systems import linux
from helpers.waiting import DEADLINE_S

from pyspec.errors import InputError, OptionError

pytestmark = pytest.mark.usefixtures("own_cache")


def test_14_bytes_that_are_no_text(tiny_ascii, command):
    """A prompt with half a surrogate is one error of the caller."""
    assert command(tiny_ascii, prompt="a\udcff")[0] == 2
    assert command(tiny_ascii, "-s", "a\udcff")[0] == 2
    with load(tiny_ascii) as llm, pytest.raises(InputError):
        llm.create_completion("a\udcff")


@pytest.mark.parametrize("text", ["a\0", "é", "\ufffd"])
def test_15_what_a_vocabulary_cannot_spell(text, tiny_ascii, tmp_path, command):
    with load(tiny_ascii) as llm:
        with pytest.raises(InputError, match="cannot spell"):
            llm.create_completion(text)
        assert llm.create_completion("a", max_tokens=1)
    assert command(tiny_ascii, prompt=text)[0] == 2
    path = tiny_llama().write(tmp_path / "bytes.gguf")
    with load(path) as llm:
        assert llm.create_completion(text, max_tokens=1)


def test_15_ids_that_are_no_tokens(tiny_ascii):
    """llama.cpp would throw through C."""
    with load(tiny_ascii) as llm:
        for token in (-1, 10**6):
            with pytest.raises(InputError, match="not a token"):
                llm.detokenize([token])


FILLED = ["-n", "-1", "--temp", "0", "-t", "1", "--trust-model", "--draft", "lookup"]


@pytest.mark.parametrize("asked", [17, 300, 500])
@pytest.mark.parametrize("name", ["generate", "chat"])
def test_22_context_fills_a_command(tiny_ascii, asked, name):
    """llama.cpp rounds a context up to 256; all of it is filled, the text kept, and the reason said."""
    raw = ["--raw"] if name == "generate" else []
    code, answer, said = run(name, "-m", tiny_ascii, "-c", asked, *FILLED, *raw, stdin=b"abc")
    n_ctx = -(-asked // 256) * 256
    assert code == 0
    assert f"the context of {n_ctx} tokens is full" in said
    # a chat's prompt has words around the message
    assert len(answer.removesuffix("\n")) >= n_ctx - 60


@pytest.mark.parametrize("option", [
    {"n_ctx": 2**31 - 1}, {"n_ctx": 99_999_999_999}, {"n_ctx": -5}, {"n_threads": 20_000}, {"n_threads": -1},
    {"n_gpu_layers": -5}, {"n_batch": 0}, {"draft_n_gpu_layers": -7},
], ids=str)  # fmt: skip
def test_23_ranges_of_the_class(option, tiny_ascii):
    with pytest.raises(OptionError, match=next(iter(option))):
        load(tiny_ascii, **option)


@pytest.mark.parametrize(
    "option",
    ["-c 2147483647", "-c 99999999999", "-t 99999999999", "-t 20000", "-ngl -5", "--repeat-penalty nan",
     "--repeat-penalty 0", "--repeat-penalty -1", "--temp nan", "--temp -1", "--top-p 0", "--min-p 2",
     "--draft-max -1", "-n -2"],
)  # fmt: skip
def test_23_ranges_of_the_command(option, tiny_ascii, command):
    assert command(tiny_ascii, *option.split())[0] == 2


IN_A_SCRIPT = """
import sys
from pyspec.errors import PyspecError
from pyspec.llama.speculative import SpeculativeLlama
try:
    with SpeculativeLlama(sys.argv[1], n_threads=1, draft="none") as llm:
        llm.create_completion("a", max_tokens=2)
except PyspecError as error:
    sys.exit(f"pyspec: {error}")
"""


@linux  # which alone keeps to a limit of address space
@pytest.mark.parametrize(
    ("entry", "megabytes"), [("command", 200), ("command", 800), ("class", 400)]
)
def test_27_little_memory(megabytes, entry, smollm2):
    """Under a limit on address space it answers, or says one sentence."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    asked = ["generate", "a", "-m", smollm2, "-n", "2", "-t", "1", "--draft", "none"]
    words = ["-m", "pyspec", *asked] if entry == "command" else ["-c", IN_A_SCRIPT, smollm2]
    done = subprocess.run(
        [sys.executable, *words],
        preexec_fn=limit, capture_output=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr[-500:]
    assert b"Traceback" not in done.stderr
