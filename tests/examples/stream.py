"""Print an answer as it is generated.

python stream.py [MODEL]
"""

import sys

from pyspec import SpeculativeLlama

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"

with SpeculativeLlama(model, n_ctx=2048) as llm:
    messages = [{"role": "user", "content": "Count to ten, one number a line."}]
    for chunk in llm.create_chat_completion(messages, max_tokens=64, stream=True):
        print(chunk["choices"][0]["delta"].get("content") or "", end="", flush=True)
    print()
    print(llm.last_speculation.sentence)
