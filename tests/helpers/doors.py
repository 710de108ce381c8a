"""One question at each door of the package, with the options of a request in the words of that door.

The same file, the same question and F32 throughout.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from helpers.asking import ask
from helpers.fake_chat import talk
from helpers.running import run
from helpers.server_here import opening
from helpers.tiny import F32
from pyspec.batch import Batch, Settings
from pyspec.chat.talk import ChatSettings, LlamaChat
from pyspec.llama.speculative import SpeculativeLlama
from pyspec.requests.records import Record
from pyspec.sampling.options import Sampling

EVERY = ("class", "generate", "chat", "batch", "serve")
N_CTX = 256
QUESTION = "to be or not to be"
ASKED = [{"role": "user", "content": QUESTION}]
SIZES: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "n_threads_batch": 1, **F32}
DRAFTED = {"draft": "lookup", "companion": "none", **SIZES}
DEFAULTS = {"temperature": 0.0, "max_tokens": 16}
"""Of each request that does not say otherwise."""


class Reply(NamedTuple):
    """What a door answered. told: the block `speculation`."""

    text: str
    finish: str
    tokens: int
    told: dict[str, Any]


class Doors:
    """The doors by name, over one file; each loads it when it is first asked. own: options of the door itself."""

    def __init__(self, path: Path, **own: Any) -> None:
        self._path, self._own, self._ends = path, own, ExitStack()

    def __getitem__(self, name: str) -> Callable[..., Reply]:
        way = getattr(self, f"_{name}")
        return lambda **options: way({**DEFAULTS, **options})

    def close(self) -> None:
        """Of the models."""
        self._ends.close()

    @property
    def _settings(self) -> Settings:
        return Settings(Sampling(**_ours(self._own)))

    @cached_property
    def _llm(self) -> SpeculativeLlama:
        llm = SpeculativeLlama(str(self._path), trust=True, **DRAFTED, **self._own)
        return self._ends.enter_context(closing(llm))

    @cached_property
    def _model(self) -> LlamaChat:
        return LlamaChat(lambda: self._llm)

    @cached_property
    def _many(self) -> Batch:
        batch = Batch(str(self._path), settings=self._settings, parallel=2, **DRAFTED)
        return self._ends.enter_context(closing(batch))

    @cached_property
    def _server(self) -> Any:
        start = self._ends.enter_context(opening(self._path))
        return start(settings=self._settings, **SIZES)

    # -- one request each -------------------------------------------------------------------------------------------------

    def _class(self, options: dict[str, Any]) -> Reply:
        return _reply(self._llm.create_chat_completion(ASKED, **options))

    def _serve(self, options: dict[str, Any]) -> Reply:
        return _reply(ask(self._server, "/v1/chat/completions", messages=ASKED, **options))

    def _batch(self, options: dict[str, Any]) -> Reply:
        if bias := options.pop("logit_bias", None):
            options["logit_bias"] = {int(token): value for token, value in bias.items()}
        (found,) = self._many.run([Record(id="a", messages=ASKED, **options)])
        assert found.error is None, found.error
        usage = found.usage.completion_tokens
        return Reply(found.text, found.finish_reason, usage, found.speculation)

    def _chat(self, options: dict[str, Any]) -> Reply:
        chat, _ = talk(self._model, ChatSettings(**_ours(options)))
        chat.send(QUESTION)
        (exchange,) = chat.conversation.exchanges
        found = exchange.answer
        usage = found.usage.completion_tokens
        return Reply(found.text, found.finish_reason, usage, found.speculation)

    def _generate(self, options: dict[str, Any]) -> Reply:
        words = [
            "-m", self._path, "--trust-model", "-t", 1, "-c", N_CTX, "-fa", "off", "-ctk", "f32", "-ctv", "f32",
        ]  # fmt: skip
        short = {"temperature": "temp", "dry_sequence_breakers": "dry-sequence-breaker"}
        for name, value in options.items():
            for each in value if isinstance(value, list) else [value]:
                words += ["--" + short.get(name, name.replace("_", "-")), each]
        done = run("generate", QUESTION, "--draft", "lookup", "--json", *words)
        assert not done.returncode, done.stderr
        told = json.loads(done.stdout)
        usage = told["usage"]["completion_tokens"]
        return Reply(told["text"], told["finish_reason"], usage, told["speculation"])


def _ours(options: dict[str, Any]) -> dict[str, Any]:
    return {"noise" if name == "sampling" else name: value for name, value in options.items()}


def _reply(told: dict[str, Any]) -> Reply:
    (choice,) = told["choices"]
    text, usage = choice["message"]["content"], told["usage"]["completion_tokens"]
    return Reply(text, choice["finish_reason"], usage, told["speculation"])
