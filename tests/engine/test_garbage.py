"""What is collected as garbage in a circle, and so in any order, frees nothing that is still in use."""

import subprocess
import sys

import gguf
import pytest
from helpers import tiny

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


@pytest.fixture
def adapter(tmp_path):
    path = tmp_path / "lora.gguf"
    writer, weights = gguf.GGUFWriter(path, "llama"), tiny.Weights(3)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    writer.add_tensor("blk.0.attn_q.weight.lora_a", weights.matrix(4, tiny.N_EMBD))
    writer.add_tensor("blk.0.attn_q.weight.lora_b", weights.matrix(tiny.N_EMBD, 4))
    return tiny.written(writer, path)


@pytest.mark.parametrize("use", USED)
def test_a_circle_is_freed(use, tiny_target, adapter):
    script = f"{MADE}    {USED[use]}; made.itself = made; del made; gc.collect()\n{USED[use]}; made.itself = made"
    words = [sys.executable, "-X", "faulthandler", "-c", script, str(tiny_target), str(adapter)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
