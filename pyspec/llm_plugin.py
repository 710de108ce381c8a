"""A plugin for the program `llm`: it answers with the models on this machine, by speculative decoding.

    llm install .     # in a clone of pyspec; or `pip install .` where `llm` is installed
    llm -m pyspec "Name three rivers."

`pyspec` is the default target, `pyspec/NAME` any model that `pyspec models list` shows. The model stays loaded while `llm` runs.
llm's log has what drafts did, next to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Literal

import llm
from llm.parts import StreamEvent
from pydantic import Field, Json, create_model

from pyspec.sampling.options import Noise, SamplerNumbers, numbers

_DEFAULT = "pyspec"
_ROLES = ("system", "user", "assistant")


def pydantic_numbers(kind: type[SamplerNumbers] = SamplerNumbers) -> dict[str, Any]:
    """A pydantic field for each number of sampling."""
    return {
        each.name: (each.kind, Field(each.default, ge=each.usual[0], le=each.usual[1], description=each.help))
        for each in numbers(kind) if each.offered
    }  # fmt: skip


class _Options(create_model("_Numbers", __base__=llm.Options, **pydantic_numbers())):  # type: ignore[misc]  # llm's types are not followed
    """Options of `llm -o NAME VALUE`, named as in `pyspec generate`."""

    # fmt: off
    seed: int | None = Field(None, ge=0, description="seed of the random draws")
    sampling: Noise = Field("coupled", description="source of random numbers, as `pyspec generate --sampling`")
    dry_sequence_breakers: list[str] | Json[list[str]] | None = Field(
        None, description="DRY: texts that end a repetition, as a JSON list")
    max_tokens: int = Field(-1, ge=-1, description="longest answer, tokens; -1 for as many as fit")
    stop: str | None = Field(None, description="end the answer before this text")
    draft: str = Field("auto", description="auto, none, lookup, or a model that drafts")
    companion: str = Field("none", description="none, auto, or a model that judges drafts")
    verify: Literal["strict", "margin"] = Field("strict", description="margin is faster and changes the text")
    gap: float = Field(1.0, ge=0, description="margin: largest difference of the two largest logits, nats")
    confirm: int = Field(0, ge=0, le=16, description="margin: drafted tokens after a relaxed one that must be strict")
    length: str = Field("auto", description="how many drafted tokens to check at once")
    n_ctx: int = Field(4096, ge=16, description="context, tokens")
    n_gpu_layers: int | Literal["auto"] = Field("auto", description="layers on devices; -1 for all, auto for as many as fit")
    threads: int | None = Field(None, ge=1, description="threads; if not given, the physical cores")
    # fmt: on


class SpeculativeModel(llm.Model):  # type: ignore[misc]
    """One model of this machine. name: as in `pyspec models list`, None for the default target."""

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = _Options

    def __init__(self, model_id: str, name: str | None) -> None:
        self.model_id = model_id
        self._name = name

    def __str__(self) -> str:
        return f"pyspec: {self.model_id}"

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[Any]:
        """Yield the answer, one piece per round; usage and what drafts did go into the response."""
        from pyspec.errors import PyspecError  # noqa: PLC0415 - llm loads this module at every start

        try:
            yield from self._answer(prompt, response)
        except PyspecError as error:
            raise llm.ModelError(str(error)) from error

    def _answer(self, prompt: Any, response: Any) -> Iterator[Any]:
        from pyspec.cli.options import DraftOptions, SamplerOptions  # noqa: PLC0415
        from pyspec.grammar.schemas import of_schema  # noqa: PLC0415
        from pyspec.llama.generation import stream_text  # noqa: PLC0415
        from pyspec.text.template import ChatTemplate  # noqa: PLC0415

        o = prompt.options
        loaded = _load(self._name, o)
        template = ChatTemplate.of(loaded)
        tools = [_tool(tool) for tool in prompt.tools]
        functions = {tool["name"]: tool["parameters"] for tool in tools}
        offered = [{"type": "function", "function": tool} for tool in tools]
        turns = [turn for each in prompt.messages for turn in _of_parts(each.role, each.parts)]
        tokens = template.prompt(turns, tools=offered or None)
        wanted = of_schema(prompt.schema) if prompt.schema else None
        shape = loaded.speech.shape(tokens, wanted, functions)
        sampler = SamplerOptions(noise=o.sampling, **_named(SamplerOptions, o))
        drafts = DraftOptions(o.verify, gap=o.gap, confirm=o.confirm, length=o.length)
        reason, emitted = None, 0
        for piece in stream_text(
            loaded,
            tokens,
            sampler.sampling(),
            max_tokens=o.max_tokens,
            stop=[*filter(None, [o.stop]), *template.stop],
            speculation=drafts.speculation,
            chat=True,
            grammar=shape,
            functions=functions,
        ):
            emitted, reason = emitted + len(piece.tokens), piece.finish_reason
            if piece.reasoning:
                yield StreamEvent(type="reasoning", chunk=piece.reasoning)
            yield piece.text
            for call in piece.calls:
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                response.add_tool_call(llm.ToolCall(name, json.loads(arguments), call["id"]))
        response.set_usage(input=len(tokens), output=emitted)
        response.response_json = {"finish_reason": reason, "speculation": loaded.last_speculation}


def _named(kind: Any, options: Any) -> dict[str, Any]:
    """The options of a dataclass that are given under the same names."""
    values = {each.name: getattr(options, each.name, None) for each in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def _tool(tool: Any) -> dict[str, Any]:
    schema = tool.input_schema or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description or "", "parameters": schema}


def _of_parts(role: str, parts: Any) -> Iterator[dict[str, Any]]:
    """The turns in a message's parts, one per tool result; reasoning is not repeated."""
    kinds: dict[str, list[Any]] = {}
    for part in parts:
        kinds.setdefault(type(part).__name__, []).append(part)
    for part in kinds.get("ToolResultPart", ()):
        result = {"role": "tool", "name": part.name, "content": part.output}
        yield {**result, "tool_call_id": part.tool_call_id or ""}
    calls = [
        {
            "id": part.tool_call_id or "",
            "type": "function",
            "function": {"name": part.name, "arguments": json.dumps(part.arguments)},
        }
        for part in kinds.get("ToolCallPart", ())
    ]
    spoken = (part for part in parts if type(part).__name__ != "ReasoningPart")
    text = "".join(getattr(part, "text", "") for part in spoken)
    if role in _ROLES and (text or calls or not kinds.get("ToolResultPart")):
        yield {"role": role, "content": text, **({"tool_calls": calls} if calls else {})}


_held: dict[Any, Any] = {}  # the one model in memory, by its loading options: two may not fit


def _load(name: str | None, options: Any) -> Any:
    from pyspec.cli.opening import open_model  # noqa: PLC0415
    from pyspec.cli.options import ModelOptions  # noqa: PLC0415

    wanted = ModelOptions(
        name,
        options.draft,
        options.companion,
        ctx=options.n_ctx,
        threads=options.threads,
        n_gpu_layers=options.n_gpu_layers,
    )
    if wanted not in _held:
        for other in list(_held):
            _held.pop(other).close()
        _held[wanted] = open_model(wanted)
    return _held[wanted]


@llm.hookimpl  # type: ignore[untyped-decorator, unused-ignore]
def register_models(register: Callable[..., None]) -> None:
    """Register the default target and every model on this machine with `llm`."""
    from pyspec.errors import PyspecError  # noqa: PLC0415
    from pyspec.hub.locate import names  # noqa: PLC0415

    register(SpeculativeModel(_DEFAULT, None))
    try:
        for name in names(targets_only=True):
            register(SpeculativeModel(f"pyspec/{name}", name))
    except PyspecError:  # a damaged manifest or cache should not stop llm from starting
        return
