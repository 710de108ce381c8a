"""How many answers differ from those of `llama_cpp.Llama`, and whether rounding alone explains it.

Both sides use flash attention and the same seeds. Where an answer differs, the original recomputes it with the same number of
rows in each decode as in our rounds, and with another token in place of each rejected draft: kernels round differently for
several rows than for one, and the KV keeps what earlier widths rounded. If the same sampler then makes our choice again, rounding
alone explains it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any

from pyspec.engine.target import TargetLlama
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.sampling.options import Sampling
from pyspec.text.parts import common_prefix

SEED = 7
TEMPERATURES = (0.0, 0.8)
DRAFTS = ("none", "lookup", "smollm2-companion", "smollm2-eagle3")
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


def compare(
    model: str, drafts: Sequence[str], n_prompts: int, n: int, threads: int
) -> Iterator[bool]:
    """For every answer that differs from the original's, whether its choice is made again by our rows."""
    options: dict[str, Any] = {
        "n_ctx": 512, "n_threads": threads, "flash_attn": True, "trust": True, "verbose": False
    }  # fmt: skip
    with closing(TargetLlama(model, **options)) as original:
        asked = product(PROMPTS[:n_prompts], TEMPERATURES)
        wanted = {(prompt, t): answer(original, prompt, t, n) for prompt, t in asked}
        options |= {"length": "fixed:4", "sampling": "llama.cpp"}
        for draft in drafts:
            with SpeculativeLlama(model, draft=draft, **options) as llm:
                for (prompt, temperature), theirs in wanted.items():
                    ours = answer(llm, prompt, temperature, n)
                    if ours != theirs:
                        place = common_prefix(ours, theirs)
                        mine = next(iter(ours[place:]), -1)
                        rounds = rounds_of(llm, prompt, temperature, place)
                        found = made_again(original, prompt, temperature, rounds, place)
                        yield found == mine


def answer(llm: Any, prompt: str, temperature: float, n: int) -> list[int]:
    """The first n ids of an answer, or fewer if it ends."""
    llm.reset()  # read the whole prompt, whatever came before
    llm.set_seed(SEED)
    ids = []
    with closing(llm.generate(llm.tokenize(prompt.encode()), temp=temperature)) as stream:
        for token in stream:
            ids.append(int(token))
            if len(ids) == n or token == llm.token_eos():
                break
    return ids


def rounds_of(
    llm: SpeculativeLlama, prompt: str, temperature: float, place: int
) -> list[tuple[int, list[int]]]:
    """Rows and tokens of our answer's rounds, up to the round with the token at this place."""
    llm.reset()
    sampling, found, done = Sampling(temperature, seed=SEED, noise="llama.cpp"), [], 0
    with closing(llm.steps(llm.tokenize(prompt.encode()), sampling)) as steps:
        for step in steps:
            found.append((step.rows, [token.id for token in step.tokens]))
            done += len(step.tokens)
            if done > place:
                break
    return found


def made_again(
    llm: Any, prompt: str, temperature: float, rounds: list[tuple[int, list[int]]], place: int
) -> int:
    """The original's choice at this place if its decodes have the same rows as these rounds."""
    text = llm.tokenize(prompt.encode())
    llm.reset()
    llm.eval(text[:-1])
    done = 0
    for rows, tokens in rounds:
        other = tokens[-1] - 1 if tokens[-1] else llm.n_vocab() - 1
        refused = [other] * (rows - len(tokens))
        decode(llm, [text[-1], *tokens[:-1], *refused], len(text) - 1)
        if place < done + len(tokens):
            return draw(llm, temperature, place, place - done)
        text, done = [*text, *tokens], done + len(tokens)
    return -1


def decode(llm: Any, tokens: list[int], start: int) -> None:
    """Decode tokens from a position in one batch, with logits for each."""
    llm._ctx.kv_cache_seq_rm(-1, start, -1)
    llm._batch.set_batch(batch=tokens, n_past=start, logits_all=True)
    llm._ctx.decode(llm._batch)


def draw(llm: Any, temperature: float, place: int, row: int) -> int:
    """The token that the answer's sampler chooses from a row of the last decode, after `place` earlier choices."""
    llm.set_seed(SEED)
    sampler = llm._init_sampler(temp=temperature)
    *_, token = (sampler.sample(llm._ctx, row) for _ in range(place + 1))
    return int(token)
