"""Greedy strict speculation against plain greedy decoding, on real models.

Each emitted token is compared with the argmax of a plain pass over the finished text. Where they differ, the place is decoded
once more, one row, as plain decoding does it: the emitted token must be within BOUND nats of the best there. A batch's width
changes the order in which products are added up, so a near-tie may fall either way; anything else is a fault. Every place of a
text is held to this, not only the first difference.
"""

from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from helpers.answers import ask

PROMPTS = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,", "Repeat after me: la la la la la la la",
    "The quick brown fox jumps over the lazy dog. The quick brown fox", "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return", "The capital of France is Paris. The capital of Germany is",
    "Q: What is 12 times 12?\nA:", "Dear Sir or Madam,\n\nI am writing to", "Water boils at 100 degrees. Explain why:",
    "import numpy as np\n\ndef mean(values):", '{"name": "Ada", "born": 1815}\n{"name": "Alan", "born":',
    "Translate to French: Good morning, my friend.", "Ingredients for pancakes:\n- flour\n- milk\n-",
    "SELECT name, age FROM people WHERE", "To be, or not to be, that is the question:", "Monday, Tuesday, Wednesday,",
    "A short poem about the rain:\n", "<ul>\n  <li>One</li>\n  <li>Two</li>\n", "a b c d e f g h i j k l m",
    "\\begin{equation}\n  E = mc^2\n\\end{equation}\n\\begin{equation}\n",
]  # fmt: skip
"""Beginnings of texts: prose, code, tables, lists, questions."""

BOUND = 1.0
"""Largest gap, in nats, at which a difference is called a near-tie. It is llama.cpp's own: the same text decoded in rows of
one and in batches of two to 64, without pyspec, has logits that differ among the best five by up to 0.99 (SmolLM2 Q4_1) and
0.92 (Gemma 3 270M Q4_K_M), since rounding is amplified where activations are quantised."""
ODD_SHARE = 0.03
"""Share of the tokens that may be near-ties."""


def rows_of(llm, tokens, first):
    """Raw logits of positions first .. len(tokens) - 2 in one batch: the rows that chose tokens[first + 1:]."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens) - 1
    for i, token in enumerate(tokens[:-1]):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, i, 1, 0
        batch.logits[i] = i >= first
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llm.ctx), False)
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    for i in range(first, len(tokens) - 1):
        yield np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, i), (llm.n_vocab(),))
    llama_cpp.llama_batch_free(batch)


def one_row_gaps(llm, text, n_prompt, places):
    """How far text[i] is behind the best at each of these places, decoded as plain decoding does: prompt, then row by row."""
    llm.reset()
    llm.eval(text[:n_prompt])
    for i in range(n_prompt, max(places, default=-1) + 1):
        if i in places:
            row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
            row = np.ctypeslib.as_array(row, (llm.n_vocab(),))
            yield float(row.max() - row[text[i]])
        llm.eval([text[i]])


SLOW = pytest.mark.slow


@pytest.mark.parametrize(("model", "draft", "prompts", "n_tokens"), [
    ("smollm2", "lookup", PROMPTS[:2], 24), ("smollm2", "auto", PROMPTS[:1], 24),
    pytest.param("smollm2", "auto", PROMPTS, 128, marks=SLOW), pytest.param("gemma", "lookup", PROMPTS, 128, marks=SLOW),
    # past its window
    pytest.param("gemma", "lookup", ["".join(f"Item {i}: {i % 7} red and {i % 5} blue balls.\n" for i in range(60))], 64,
                 marks=SLOW),
], ids=lambda value: len(value) if isinstance(value, list) else value)  # fmt: skip
def test_speculation_is_plain_greedy_but_for_near_ties(
    open_llama, open_plain, model, draft, prompts, n_tokens, request
):
    path = Path(request.getfixturevalue(model))
    llm = open_llama(path, draft=draft, n_ctx=1024)
    plain = open_plain(path, n_ctx=1024, n_batch=1024, n_ubatch=1024)
    gaps, accepted = [], 0
    for prompt in prompts:
        text = llm.tokenize(prompt.encode())
        n = len(text)
        text += ask(llm, text, n_tokens).ids
        accepted += llm.last_speculation["accepted"]
        rows = enumerate(rows_of(plain, text, n - 1), n)
        odd = {i for i, row in rows if int(np.argmax(row)) != text[i]}
        gaps += one_row_gaps(plain, text, n, odd)
    assert max(gaps, default=0.0) < BOUND
    assert len(gaps) <= 1 + ODD_SHARE * len(prompts) * n_tokens
    assert accepted > len(prompts) * n_tokens // 10
