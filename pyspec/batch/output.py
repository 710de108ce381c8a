"""Runs a batch from input files to output files. Answers go into a journal first; the output is assembled from it at the end.

`OUT.jsonl` has a line for each record, in the order of the inputs. `DIR/` has a text file for each input file, and `OUT.csv` a
row for each record. These two keep their journal, since they cannot hold whole results. Without `--overwrite`, a run replaces
only files that it wrote itself.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from pyspec.batch.journal import Journal, Key
from pyspec.batch.layouts import OutputFiles, Results, TableFile, TextFiles
from pyspec.batch.reading import InputFile, Reading
from pyspec.errors import InputError
from pyspec.machine.files import as_text
from pyspec.requests.bodies import body_of, choice_of
from pyspec.requests.records import Record
from pyspec.text.parts import Failure, RecordResult, Usage


class _EarlierLine(msgspec.Struct):
    """A line of an earlier output: the fields of both formats."""

    prompt_sha256: str
    run: str
    id: str = ""
    text: str = ""
    reasoning: str = ""
    reasoning_cut: bool = False
    calls: list[dict[str, Any]] = []
    finish_reason: str | None = None
    usage: Usage = Usage()
    speculation: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    custom_id: str | None = None
    response: dict[str, Any] | None = None
    prompt: str | None = None
    messages: list[Any] | None = None

    def result(self) -> RecordResult:
        """The line as a result. Raises LookupError, TypeError or ValidationError if it is no line of ours."""
        name, request = self.custom_id or self.id, self.prompt_sha256
        known: dict[str, Any] = {"index": -1, "id": name, "prompt_sha256": request}
        if self.error is not None:
            kind = self.error.get("type") or self.error["code"]
            return RecordResult(**known, error=Failure(kind, self.error["message"]))
        if self.response is not None:
            return RecordResult(**known, **_from_openai(self.response["body"]))
        own = {name: getattr(self, name) for name in _ANSWER}
        return RecordResult(**known, **own)


_ANSWER = ("text", "reasoning", "reasoning_cut", "calls", "finish_reason", "usage", "speculation")
"""Members of a line that are the answer."""


def _from_openai(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer in a response's body, by the names of a result."""
    choice = body["choices"][0]
    message = choice.get("message") or {"content": choice["text"]}
    return {
        "text": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": message.get("tool_calls", []),
        "reasoning_cut": choice.get("reasoning_cut", False),
        "finish_reason": choice["finish_reason"],
        "usage": msgspec.convert(body["usage"], Usage),
        "speculation": body["speculation"],
        "created": body["created"],
    }


class JsonLines(OutputFiles):
    """A JSONL file. prompts: whether it has the record's prompt. model: the model's name in lines of OpenAI's format."""

    def __init__(
        self, path: Path, inputs: Sequence[InputFile], *, prompts: bool = False, overwrite: bool = False, model: str = "",
    ) -> None:  # fmt: skip
        journal = path.with_name(path.name + ".journal")
        super().__init__([path], inputs, journal, overwrite=overwrite)
        self.path, self.prompts, self.model = path, prompts, model
        self._run = ""

    def inspect(self, run: str) -> list[RecordResult]:
        """Return an earlier output's results, none of a file to overwrite. Raises ResumeMismatch for a foreign file."""
        self._run = run
        if self.signatures[self.path] is None:
            return []
        lines, results = _known_lines(self.path)
        if results and all(line.run == run for line in lines):
            said = [(line.error, line.prompt, line.messages) for line in lines]
            self.stale = self.prompts and (None, None, None) in said
            return results
        if self.overwrite:
            return []
        raise self.refuse(self.path, ", but of other models or options" if results else "")

    def check(self, journal: Journal) -> None:
        """Do nothing: `inspect` has checked the only file."""

    def assemble(self, journal: Journal, results: Results, records: Sequence[Record]) -> None:
        """Write the file and remove the journal. Raises BatchWriteError."""
        self._write(self.path, self.chunks(self.path, results, records))
        journal.remove()

    def chunks(self, path: Path, results: Results, records: Sequence[Record]) -> Iterator[bytes]:
        for i, record in enumerate(records):
            whole = {"prompt": record.prompt, "messages": record.messages} if self.prompts else {}
            prompt = {name: value for name, value in whole.items() if value is not None}
            yield output_line(results(i), self._run, record.form, model=self.model, prompt=prompt)


def _known_lines(path: Path) -> tuple[list[_EarlierLine], list[RecordResult]]:
    """Return the lines of an earlier output, and their results; none if the file is something else."""
    decode = msgspec.json.Decoder(_EarlierLine).decode
    try:
        with path.open("rb") as stream:
            lines = [decode(line) for line in stream]
        return lines, [line.result() for line in lines]
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError):
        return [], []


ABOUT_THE_TEXT = ("sampling", "seed", "verification", "relaxed", "relaxed_nats")
"""Members of `speculation` that describe the text. The others describe its computation: rounds and drafted tokens depend on
the clock, on neighbours in the batch and on interruptions."""


def output_line(
    result: RecordResult,
    run: str,
    form: str = "",
    *,
    model: str = "",
    prompt: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return a result's line in the output file, with its newline.

    run: hash of the run's identity. form: the endpoint of a line in OpenAI's batch format, "" for a line in ours.
    prompt: the record's prompt, if the line is to have it.
    """
    block = {key: result.speculation[key] for key in ABOUT_THE_TEXT if key in result.speculation}
    if form:
        line = {**_openai_line(result, run, form, block, model), **prompt}
        return msgspec.json.encode(line) + b"\n"
    line = {"id": result.id, **prompt, "prompt_sha256": result.prompt_sha256, "text": result.text}
    for name in ("reasoning", "reasoning_cut", "calls"):
        if value := getattr(result, name):
            line[name] = value
    line |= {"finish_reason": result.finish_reason, "usage": result.usage, "speculation": block}
    return msgspec.json.encode({**line, "error": result.error, "run": run}) + b"\n"


def _openai_line(
    result: RecordResult, run: str, form: str, block: dict[str, Any], model: str
) -> dict[str, Any]:
    name = hashlib.sha256(f"{run}\0{result.id}".encode()).hexdigest()[:24]
    response = error = None
    if result.error is None:
        choices = [choice_of(form, 0, result)]
        body = body_of(form, f"cmpl-{name}", model, result.created, choices)
        body = {**body, "usage": result.usage, "speculation": block}
        response = {"status_code": 200, "request_id": f"req_{name}", "body": body}
    else:
        error = {"code": result.error.type, "message": result.error.message}
    return {
        "id": f"batch_req_{name}",
        "custom_id": result.id,
        "response": response,
        "error": error,
        "prompt_sha256": result.prompt_sha256,
        "run": run,
    }


def open_output(
    out: str, inputs: Sequence[InputFile], reading: Reading, *, overwrite: bool, **lines: Any
) -> OutputFiles:
    """Open the output that `-o` names: a folder if it is one or ends with a slash, a table if it ends with .csv, else JSON lines.

    lines: arguments of `JsonLines`. Raises InputError for an unknown ending, and for prompts in a folder or a table.
    """
    if out == "-":
        hint = "name a file, such as OUT.jsonl"
        raise InputError("-o - would be stdout, from which no batch resumes", hint)
    folder = out.endswith(("/", os.sep)) or Path(out).is_dir()
    if not folder and not (parent := Path(out).parent).is_dir():
        hint = "create it"
        raise InputError(f"-o {as_text(out)}: there is no folder {as_text(parent)}", hint)
    if lines.get("prompts") and (folder or out.lower().endswith(".csv")):
        raise InputError("--with-prompt is for JSON lines", "give -o OUT.jsonl, or leave it out")
    if folder:
        return TextFiles(Path(out), inputs, reading.per, overwrite=overwrite)
    if out.lower().endswith(".csv"):
        return TableFile(Path(out), inputs, reading, overwrite=overwrite)
    made = JsonLines(Path(out), inputs, overwrite=overwrite, **lines)  # its errors matter more
    if Path(out).suffix.lower() not in ("", ".jsonl", ".ndjson"):
        hint = "use OUT.jsonl for JSON lines, OUT.csv for a table or DIR/ for text files"
        raise InputError(f"-o {as_text(out)} has no known ending", hint)
    return made


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class RunProgress:
    """Counts of a run."""

    records: int
    kept: int = 0  # answered by an earlier run
    done: int = 0  # finished by this one, answered or failed
    answered: int = 0
    failed: int = 0  # those of earlier runs included
    tokens: int = 0
    verified: int = 0  # drafted tokens, as `accepted`
    accepted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return self.records - self.kept - self.answered - self.failed

    def count(self, result: RecordResult) -> None:
        self.done += 1
        reason = result.error.type if result.error is not None else result.finish_reason or "?"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.failed += result.error is not None
        self.answered += result.error is None
        self.tokens += result.usage.completion_tokens
        self.verified += result.speculation.get("verified", 0)
        self.accepted += result.speculation.get("accepted", 0)


class Answerer(Protocol):
    """What answers records: a `Batch`, or its equivalent on a cluster."""

    def identity(self) -> dict[str, Any]:
        """All that the answers depend on."""

    def run_indexed(self, records: Sequence[tuple[int, Record]]) -> Iterator[RecordResult]:
        """Results of records with their indexes, as they finish."""


class FileRun:
    """Answers records and writes their output. Use it in a `with` block: first `answer`, then `assemble`.

    Results of earlier runs are kept, by what identifies each: the inputs may have been mended or extended. retry_failed: whether
    to answer failed records again. Entering the block raises BatchWriteError if another process writes this output, and
    ResumeMismatch if it belongs to other models or options, or would lose answers. Nothing has been computed by then.
    """

    def __init__(
        self,
        answerer: Answerer,
        records: Sequence[Record],
        output: OutputFiles,
        *,
        retry_failed: bool = False,
    ) -> None:
        self.answerer, self.records, self.output = answerer, records, output
        self.retry_failed = retry_failed
        self.summary = RunProgress(len(records))
        self.run = answerer.identity()
        self.name = hashlib.sha256(msgspec.json.encode(self.run)).hexdigest()[:16]
        self.journal: Journal | None = None
        self._own = [(record.id, record.sha256) for record in records]
        self._keys: list[Key] = []
        self._todo: list[int] = []

    def __enter__(self) -> FileRun:
        earlier = {(each.id, each.prompt_sha256): each for each in self.output.inspect(self.name)}
        failed = sum(each.error is not None for each in earlier.values())
        same = [*earlier] == self._own and not self.output.stale
        if same and not (failed and self.retry_failed) and not self.output.journal.exists():
            self.summary.kept, self.summary.failed = len(self.records) - failed, failed
            return self
        journal = Journal(self.output.journal, self.run, anew=self.output.overwrite)
        try:
            self._begin(journal, earlier)
        except BaseException:
            (journal.close if journal.places else journal.remove)()
            raise
        self.journal = journal
        return self

    def _begin(self, journal: Journal, earlier: Mapping[Key, RecordResult]) -> None:
        found = matched(self._own, [*earlier, *journal.places])
        answered = {key for key, each in earlier.items() if each.error is None}
        answered |= journal.places.keys() - journal.failed
        if answered and not self.output.overwrite:
            path = next(iter(self.output.signatures)) if earlier else journal.path
            self._refuse_loss(path, answered, answered & {*found})
        self.output.check(journal)
        for key in found:  # the journal is all that is read from here on
            if key is not None and key in earlier and key not in journal.places:
                journal.append(earlier[key])
        failed = [key in journal.failed for key in found]
        self.summary.failed = 0 if self.retry_failed else sum(failed)
        self.summary.kept = len(found) - found.count(None) - sum(failed)
        self._keys = [self._own[i] if key is None else key for i, key in enumerate(found)]
        for i, key in enumerate(found):
            if key is None or (failed[i] and self.retry_failed):
                self._keys[i] = self._own[i]
                self._todo.append(i)

    def _refuse_loss(self, path: Path, answered: set[Key], kept: set[Key]) -> None:
        """Raise ResumeMismatch where no answer is kept, or answered records are gone, neither changed nor elsewhere."""
        names = {name for name, _ in answered - kept}
        if kept:
            names -= {name for name, _ in self._own}
        if names:
            lost = f"{len(names)} records that are not in these inputs, {min(names)} among them"
            raise self.output.refuse(path, f": it has answers to {lost}")

    @property
    def complete(self) -> bool:
        """Whether the output was complete before the run."""
        return self.journal is None

    def answer(self, report: Callable[[RecordResult], None]) -> None:
        """Answer unfinished records. Each is written to the journal before `report` is called with it."""
        journal = self.journal
        if journal is None:
            return
        todo = [(i, self.records[i]) for i in self._todo]
        try:
            for result in self.answerer.run_indexed(todo):
                if self.records[result.index].form:
                    result.created = int(time())
                journal.append(result)
                self.summary.count(result)
                report(result)
        finally:
            journal.sync()

    def assemble(self) -> None:
        if self.journal is not None:
            read, keys, own = self.journal.read, self._keys, self.records
            self.output.assemble(self.journal, lambda i: replace(read(keys[i]), id=own[i].id), own)

    def __exit__(self, *_: object) -> None:
        if self.journal is not None:
            self.journal.close()


def matched(wanted: Sequence[Key], known: Iterable[Key]) -> list[Key | None]:
    """For each record, the earlier result that is its answer; None for a record that has none.

    A record that moved (a line above it is new, its file has another name) keeps the answer to the same request.
    """
    free = dict.fromkeys(known)
    found = [key if key in free else None for key in wanted]
    moved: dict[str, deque[Key]] = {}
    taken = {*found}
    for key in free:
        if key not in taken:
            moved.setdefault(key[1], deque()).append(key)
    for i, (_, sha256) in enumerate(wanted):
        if found[i] is None and moved.get(sha256):
            found[i] = moved[sha256].popleft()
    return found
