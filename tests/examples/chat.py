"""Ask a question as with llama-cpp-python; only the import differs.

    python chat.py [MODEL]

MODEL is a file or a name that `pyspec models list` shows; a model that is not here is downloaded.
"""

import sys

from pyspec import SpeculativeLlama

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
llm = SpeculativeLlama(model, n_ctx=2048)

messages = [{"role": "user", "content": "Rewrite in the past tense: The dog runs home and sleeps."}]
result = llm.create_chat_completion(messages, max_tokens=64, temperature=0.0)

print(result["choices"][0]["message"]["content"])
print(llm.last_speculation.sentence)  # such as: 214 tokens/s, 1.6 times plain decoding
llm.close()
