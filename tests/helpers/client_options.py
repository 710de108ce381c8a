"""What the tests of other people's programs share."""

from typing import Any

OPTIONS = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1}
OPTIONS |= {"flash_attn": True, "verbose": False}


def accepted(llm: Any) -> int:
    """Drafted tokens that the last answer of an object took; None has none to show, being the original."""
    return llm.last_speculation["accepted"] if hasattr(llm, "last_speculation") else 0
