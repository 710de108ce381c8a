"""Greedy strict speculation against plain greedy decoding, on real models.

Texts are made by speculation, many sequences a batch: two of 24 tokens, and where slow tests run 40 of 128. Each emitted token
is then compared with the argmax of a plain pass over the finished text. Where they differ, the place is decoded once more, one
row, as plain decoding does it: the emitted token must be within BOUND nats of the best there. A batch's width changes the order
in which products are added up, so a near-tie may fall either way; anything else is a fault. Every place of a text is held to
this, not only the first difference. PYSPEC_TEST_THREADS sets the threads: several wait for each other a thousand times a token,
which takes for ever on a machine that others use.
"""

import os
from contextlib import closing
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from helpers.answers import ask

from pyspec._lib import address
from pyspec.draft.lookup import LookupDrafter
from pyspec.draft.simple import FixedPolicy
from pyspec.engine.handle import Engine, Gate, Role
from pyspec.engine.models import SideModel
from pyspec.engine.round import Loop, Run
from pyspec.sampling.verification import Strict

PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox", "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    "The capital of France is Paris. The capital of Germany is", "Q: What is 12 times 12?\nA:",
    "Dear Sir or Madam,\n\nI am writing to", "The three primary colours are", "Water boils at 100 degrees. Explain why:",
    "import numpy as np\n\ndef mean(values):", '{"name": "Ada", "born": 1815}\n{"name": "Alan", "born":',
    "Translate to French: Good morning, my friend.", "Ingredients for pancakes:\n- flour\n- milk\n-", "In 1969, two astronauts",
    "SELECT name, age FROM people WHERE", "The opposite of hot is cold. The opposite of up is",
    "To be, or not to be, that is the question:", "Monday, Tuesday, Wednesday,", "A short poem about the rain:\n",
    "<ul>\n  <li>One</li>\n  <li>Two</li>\n", "Roses are red, violets are blue,",
    '{"name": "Ada", "age": 36, "city": "London"}\n{"name": "Grace", "age":', "The mitochondria is the powerhouse of",
    "Repeat after me: la la la la la la la", "Step 1: Boil the water. Step 2: Add the pasta. Step 3:",
    "<html>\n<head>\n<title>Test page</title>\n</head>\n<body>\n", "The three laws of robotics are as follows. First,",
    "Newton's first law states that an object at rest", "a b c d e f g h i j k l m", "#include <stdio.h>\n\nint main(void) {\n",
    "The train left the station at noon. Two hours later,", "Alice said: 'Hello, Bob.' Bob said: 'Hello, Alice.' Alice said:",
    "The largest planet of the solar system is Jupiter; the smallest is",
    "Summary: the meeting was about the budget. Action items:\n-",
    "It was a dark and stormy night; the rain fell in torrents, except at",
    "The word 'cat' in Spanish is 'gato', the word 'dog' is", "According to the weather forecast, tomorrow will be",
    "\\begin{equation}\n  E = mc^2\n\\end{equation}\n\\begin{equation}\n", "Name: John Smith\nAddress: 12 Main Street\nPhone:",
    "One morning the king woke up and found that his crown was",
]  # fmt: skip
"""Forty beginnings of texts: prose, code, tables, lists, questions."""

N_SEQ, ROOM = 10, 256
THREADS = int(os.environ.get("PYSPEC_TEST_THREADS", "1"))
BOUND = 1.0
"""Largest gap, in nats, at which a difference is called a near-tie. It is llama.cpp's own: the same text decoded in rows of
one and in batches of two to 64, without pyspec, has logits that differ among the best five by up to 0.99 (SmolLM2 Q4_1) and
0.92 (Gemma 3 270M Q4_K_M), since rounding is amplified where activations are quantised."""
ODD_SHARE = 0.03
"""Share of the tokens that may be near-ties."""


def speculate(engine, n_ctx, prompts, n_tokens):
    """Answers of `n_tokens`, N_SEQ sequences at a time, by lookup with four drafted tokens; and how many were accepted."""
    loop = Loop(engine, n_ctx, drafter=LookupDrafter())
    policy, texts, accepted = FixedPolicy(4), [], 0
    for first in range(0, len(prompts), N_SEQ):
        asked = enumerate(prompts[first : first + N_SEQ])
        runs = [Run(i, list(p), Gate(Strict(), sampled=False), n_tokens) for i, p in asked]
        for run in runs:
            engine.set_tokens(run.seq, run.tokens)
            upto = len(run.tokens) - 1
            while engine.prefill(Role.TARGET, run.seq, upto, 256) < upto:
                pass
        while active := [run for run in runs if run.finish_reason is None]:
            loop.round(active, policy)
        texts += [run.tokens for run in runs]
        accepted += sum(run.tally.accepted for run in runs)
    return texts, accepted


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


@pytest.mark.parametrize(("model", "texts", "n_tokens"), [
    ("smollm2", [PROMPTS[3], PROMPTS[23]], 24),
    pytest.param("smollm2", PROMPTS, 128, marks=pytest.mark.slow),
    pytest.param("gemma", PROMPTS, 128, marks=pytest.mark.slow),
], ids=lambda value: len(value) if isinstance(value, list) else value)  # fmt: skip
def test_speculation_is_plain_greedy_but_for_near_ties(open_plain, model, texts, n_tokens, request):
    path = Path(request.getfixturevalue(model))
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), ROOM)
    llm = open_plain(path, n_threads=THREADS, n_threads_batch=THREADS, **sizes)
    prompts = [llm.tokenize(text.encode()) for text in texts]
    llm.context_params.n_ctx = N_SEQ * ROOM
    many = SideModel(path, llm, n_seq=N_SEQ)
    llm.context_params.n_ctx = ROOM
    with closing(Engine(N_SEQ, llm.n_vocab())) as engine:
        # with the tokenizer of the other one: a side model brings none
        engine.attach(Role.TARGET, many.context, address(llm.model))
        answers, accepted = speculate(engine, ROOM, prompts, n_tokens)
    many.close()
    assert accepted > len(prompts) * n_tokens // 10
    check_near_ties(llm, [(len(prompt), text) for prompt, text in zip(prompts, answers)])


@pytest.mark.slow
def test_gemma_past_its_window(open_llama, open_plain, gemma):
    text = "".join(f"Item {i}: a box of {i % 7} red and {i % 5} blue balls.\n" for i in range(36))
    llm = open_llama(gemma, draft="lookup", n_ctx=1024)
    prompt = llm.tokenize(text.encode())
    assert len(prompt) > 512
    answer = ask(llm, prompt, 64).ids
    assert llm.last_speculation["accepted"] > 20
    plain = open_plain(gemma, n_ctx=1024, n_batch=1024, n_ubatch=1024)
    check_near_ties(plain, [(len(prompt), [*prompt, *answer])])


def check_near_ties(llm, texts):
    """Hold every answered token of (prompt length, text) to plain decoding's choice, or to a near-tie of it."""
    gaps = []
    for n, text in texts:
        rows = enumerate(rows_of(llm, text, n - 1), n)
        odd = {i for i, row in rows if int(np.argmax(row)) != text[i]}
        gaps += one_row_gaps(llm, text, n, odd)
    assert max(gaps, default=0.0) < BOUND
    assert len(gaps) <= 1 + ODD_SHARE * sum(len(text) - n for n, text in texts)
