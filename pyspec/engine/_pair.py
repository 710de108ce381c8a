"""Lets a draft that reads a target's states draft for it, in a child process. Run by path.

    _pair.py draft TARGET DRAFT OPTIONS_JSON    DRAFT is a file, or "mtp" for the target's own head

It ends with one line, a JSON object {"ok", "error"}. An error that pyspec itself raises is no failure here: the parent will get
it too.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from pyspec.draft.simple import FixedPolicy
from pyspec.engine.assembly import Assembly, choose_parts
from pyspec.engine.handle import Gate
from pyspec.engine.runs import Run
from pyspec.engine.session import Session
from pyspec.engine.target import TargetLlama
from pyspec.errors import EngineError, PyspecError
from pyspec.gguf.kinds import MTP
from pyspec.sampling.verification import Strict

PROMPT, ANSWER, DRAFTED = 70, 24, 5
"""Tokens: enough for more than one batch of states, several rounds, and drafts of several rows."""


def draft(target: str, draft_file: str, options: str) -> None:
    """Answer once, with drafts."""
    kwargs = json.loads(options)
    seconds = kwargs.pop("seconds")
    llm = TargetLlama(target, trust=True, verbose=False, head=draft_file == MTP, **kwargs)
    session = Session(Assembly(llm, choose_parts(llm, draft_file, "none")))
    prompt = [3 + i % (llm.n_vocab() - 3) for i in range(min(PROMPT, llm.n_ctx() // 2))]
    run = Run(0, prompt, Gate(Strict(), sampled=False), ANSWER, goes_on=True)
    signal.setitimer(signal.ITIMER_PROF, seconds * llm.n_threads)  # ends what would never end
    for _ in session.steps(run, FixedPolicy(DRAFTED)):
        pass
    if session.loop.failed:  # the answer went on without the draft, so the trial proved nothing
        raise EngineError("it cannot draft for this target")


def main() -> None:
    """Run the trial and report it."""
    error = ""
    try:
        draft(*sys.argv[2:])
    except EngineError as failure:
        error = str(failure)
    except PyspecError:
        error = ""
    sys.stdout.write("\n" + json.dumps({"ok": not error, "error": error}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
