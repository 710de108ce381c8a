"""What these tests ask for, and what they compare of an answer."""

PROMPT = "abcabd"
GREEDY = {"temperature": 0.0, "max_tokens": 40}
CHAT = [{"role": "user", "content": "say abc abc"}]


def stable(result):
    own = {"id", "created", "speculation", "model"}
    return {key: value for key, value in result.items() if key not in own}


def completed(llm, prompt=PROMPT, **options):
    """What is the same each time of a completion."""
    return stable(llm.create_completion(prompt, **options))


def greedy(llm, prompt=PROMPT, **more):
    return completed(llm, prompt, **{**GREEDY, **more})
