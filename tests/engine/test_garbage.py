"""What is collected as garbage in a circle, and so in any order, frees nothing that is still in use."""

import subprocess
import sys

import pytest
from helpers.make_gguf import adapter

MADE = """
import gc, sys
from pyspec.batch import Batch
from pyspec.llama.speculative import SpeculativeLlama
path, options = sys.argv[1], {"n_threads": 1, "n_ctx": 64, "length": "fixed:2"}
for _ in range(2):
"""
USED = {
    "never": "made = SpeculativeLlama(path, draft='none', **options)",
    "with an adapter": "made = SpeculativeLlama(path, draft='none', lora_path=sys.argv[2], **options)",
    "plainly": "made = SpeculativeLlama(path, draft='none', **options); made('ab', max_tokens=2)",
    "with a draft": "made = SpeculativeLlama(path, draft=path, **options); made('ab', max_tokens=9)",
    "in a batch": "made = Batch(path, draft=path, parallel=2, **options); list(made.run(['ab', 'c']))",
    "in a batch of streams": "made = Batch(path, draft='none', parallel=8, **options); list(made.run(['ab'] * 8))",
}


@pytest.mark.parametrize("use", USED)
def test_a_circle_is_freed(use, tiny_target, tmp_path):
    lora = adapter().write(tmp_path / "lora.gguf")
    script = f"{MADE}    {USED[use]}; made.itself = made; del made; gc.collect()\n{USED[use]}; made.itself = made"
    words = [sys.executable, "-X", "faulthandler", "-c", script, str(tiny_target), str(lora)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
