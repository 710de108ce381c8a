"""Answer many prompts at once: all answers share the target's decodes.

    python batch.py [MODEL]

`pyspec batch` does the same from files to files, with a journal that survives a kill.
"""

import sys

from pyspec.batch import Batch, Settings

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
questions = ["What is a cat?", "Name three colours.", "Say hello in French.", "What is 2 + 2?"]

with Batch(model, n_ctx=512, parallel=4, settings=Settings(max_tokens=32)) as batch:
    for result in batch.run(questions):  # in the order in which they finish
        text = " ".join(result.text.split())
        print(f"{questions[result.index]} {text[:60]} ({result.finish_reason})")
