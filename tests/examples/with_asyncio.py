"""Generate answers in an event loop: decodes run in threads, which take turns.

    python with_asyncio.py [MODEL]

For many requests at once, use `pyspec serve` with openai's AsyncOpenAI, where answers share decodes.
"""

import asyncio
import sys

from pyspec import SpeculativeLlama

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"


async def ask(llm, question):
    """The text of an answer, while the loop goes on."""
    messages = [{"role": "user", "content": question}]
    result = await asyncio.to_thread(llm.create_chat_completion, messages, max_tokens=32)
    return result["choices"][0]["message"]["content"]


async def main():
    """Two questions, answered one after the other, and a clock that goes on meanwhile."""
    with SpeculativeLlama(model, n_ctx=1024) as llm:
        answers = asyncio.gather(ask(llm, "What is a cat?"), ask(llm, "What is a dog?"))
        ticks = 0
        while not answers.done():
            await asyncio.sleep(0.01)
            ticks += 1
        for answer in await answers:
            print(answer)
        print(f"the loop went on {ticks} times meanwhile")


asyncio.run(main())
