"""Write your own draft. Any class that proposes tokens can draft: the target checks them all, so the text stays its own.

python own_draft.py [MODEL]
"""

import sys

from pyspec import Drafter, Proposal, SpeculativeLlama

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"


class Echo(Drafter):
    """Propose what followed the previous occurrence of the last token."""

    name = "echo"

    def propose(self, seq, tokens, limit):
        """Propose up to `limit` tokens that may follow `tokens`."""
        last = tokens[-1]
        for place in range(len(tokens) - 2, -1, -1):
            if tokens[place] == last:
                return Proposal(tokens[place + 1 : place + 1 + limit], match_length=1)
        return Proposal(())


with SpeculativeLlama(model, n_ctx=1024, draft=Echo()) as llm:
    prompt = "one two three one two three one two three"
    result = llm.create_completion(prompt, max_tokens=48, temperature=0.0)
    print(result["choices"][0]["text"])
    block = result["speculation"]
    print(f"{block['drafted']} tokens drafted, {block['accepted']} accepted: {block.sentence}")
