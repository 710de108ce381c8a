"""Decides whether a running server of this user answers, which saves loading the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pyspec.chat.remote import RemoteChat
from pyspec.chat.servers import RunningServer, find_server, server_at
from pyspec.cli.command import changed_options, tell
from pyspec.cli.engine_options import EngineOptions
from pyspec.cli.options import ModelOptions
from pyspec.errors import OptionError

AUTO, NONE = "auto", "none"


def chosen_server(
    word: str, models: ModelOptions, engine: EngineOptions, others: Sequence[str]
) -> RunningServer | None:
    """Return the server that answers; None to load the model here.

    word: the value of --server. others: further options given that need the model in this process. With `auto`, any such option
    has the model loaded here. Raises OptionError for a named server that does not answer, or cannot do what is asked.
    """
    if word == NONE:
        return None
    own = [*changed_options(replace(models, model=None), engine), *others]
    if word == AUTO:
        return None if own else find_server(models.model, _say_waiting)
    if "://" not in word:
        raise OptionError(
            f"--server is {word}", "use auto, none, or an address such as http://127.0.0.1:8080"
        )
    if own:
        hint = "leave them out, or use --server none"
        raise OptionError(f"{', '.join(own)} need the model in this process", hint)
    found = server_at(word)
    if found is None:
        raise OptionError(f"no server answers at {word}", "start one with `pyspec serve`")
    return found


def _say_waiting(server: RunningServer) -> None:
    hint = "--server none loads the model here"
    tell(f"waiting for the server at {server.url}, which loads the model ({hint})", err=True)


def stand_in(model: RemoteChat) -> Any:
    """Return an object with what reports read of a loaded model, for the model of a server."""
    timings = (model.stats or {}).get("timings", {})
    return SimpleNamespace(n_ctx=lambda: model.n_ctx, last_timings=timings, piece=model.piece)
