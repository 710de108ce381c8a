"""llama.cpp's abort writes nothing to stdout: it would start a debugger for a backtrace."""

import subprocess
import sys

ABORTS = """
import sys
import llama_cpp
import pyspec.llama.speculative
llm = llama_cpp.Llama(sys.argv[1], n_ctx=64, vocab_only=False, verbose=False)
llama_cpp.llama_token_to_piece(llm._model.vocab, 10**6, None, 0, 0, False)
"""


def test_an_abort_says_nothing_on_stdout(tiny_target):
    words = [sys.executable, "-c", ABORTS, str(tiny_target)]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode < 0, done.stdout) == (True, b"")
