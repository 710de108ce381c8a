"""Runs a batch from input files to output files. Answers go into a journal first; the output is assembled from it at the end.

`OUT.jsonl` has a line for each record, in the order of the inputs. `DIR/` has a text file for each input file, and `OUT.csv` a
row for each record. These two keep their journal, since they cannot hold whole results. Without `--overwrite`, a run replaces
only files that it wrote itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from pyspec.batch.journal import Journal
from pyspec.batch.layouts import OutputFiles, TableFile, TextFiles
from pyspec.batch.reading import InputFile, Reading, as_text
from pyspec.errors import InputError
from pyspec.requests.bodies import body_of, choice_of
from pyspec.requests.records import Record
from pyspec.text.result import RecordResult


class _EarlierLine(msgspec.Struct):
    """The fields that decide whether a line of an earlier output can be kept."""

    prompt_sha256: str
    run: str
    id: str = ""
    custom_id: str | None = None
    error: dict[str, Any] | None = None
    prompt: str | None = None
    messages: list[Any] | None = None

    @property
    def has_prompt(self) -> bool:
        return self.prompt is not None or self.messages is not None


class JsonLines(OutputFiles):
    """A JSONL file.

    counts: whether each line has all counts of speculation. prompts: whether it has the record's prompt. model: the model's name
    in lines of OpenAI's format.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[InputFile],
        *,
        counts: bool = False,
        prompts: bool = False,
        overwrite: bool = False,
        model: str = "",
    ) -> None:
        journal = path.with_name(path.name + ".journal")
        super().__init__([path], inputs, journal, overwrite=overwrite)
        self.path, self.counts, self.prompts, self.model = path, counts, prompts, model
        self._run = ""
        self._earlier: list[bytes | None] = []

    def inspect(self, run: str, records: Sequence[Record]) -> list[bytes | None]:
        """Return the lines of this run's earlier output, with None for failed records.

        The list is empty if there is no file, or one to overwrite. Raises ResumeMismatch for any other file.
        """
        self._run = run
        if self.signatures[self.path] is None:
            return []
        known = _known_lines(self.path)
        wanted = [(record.id, record.sha256) for record in records]
        found = [(line.custom_id or line.id, line.prompt_sha256) for line, _ in known]
        lacks = self.prompts and any(not (line.error or line.has_prompt) for line, _ in known)
        if found == wanted and all(line.run == run for line, _ in known) and not lacks:
            self._earlier = [data if line.error is None else None for line, data in known]
            return self._earlier
        if self.overwrite:
            return []
        why = ": the same records, answered with other models or options"
        if lacks:
            why = ": the same records, without their prompts"
        if found != wanted:
            same = len(set(found) & set(wanted))
            why = f": {same} of its {len(known)} records are in these inputs" if known else ""
        raise self.refuse(self.path, why)

    def check(self, journal: Journal, records: Sequence[Record]) -> None:
        """Do nothing: `inspect` has checked the only file."""

    def assemble(self, journal: Journal, records: Sequence[Record]) -> None:
        """Write the file and remove the journal. Raises BatchWriteError."""
        super().assemble(journal, records)
        journal.remove()

    def chunks(self, path: Path, journal: Journal, records: Sequence[Record]) -> Iterator[bytes]:
        """Yield a line for each record: its earlier line, unless the record was answered again."""
        for i, record in enumerate(records):
            line = self._earlier[i] if self._earlier and i not in journal else None
            if line is None:
                prompt = _prompt_of(record) if self.prompts else {}
                line = output_line(
                    journal.read(i),
                    self._run,
                    record.form,
                    counts=self.counts,
                    model=self.model,
                    prompt=prompt,
                )
            yield line


def _known_lines(path: Path) -> list[tuple[_EarlierLine, bytes]]:
    """Return the lines of an earlier output; none if the file is something else."""
    decode = msgspec.json.Decoder(_EarlierLine).decode
    try:
        with path.open("rb") as stream:
            return [(decode(line), line) for line in stream]
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return []


ABOUT_THE_TEXT = ("sampling", "seed", "verification", "relaxed", "relaxed_nats")
"""Members of `speculation` that describe the text. The others describe its computation: rounds and drafted tokens depend on
the clock, on neighbours in the batch and on interruptions."""


def _prompt_of(record: Record) -> dict[str, Any]:
    """Return a record's prompt as members of its line; none for a record that could not be read."""
    prompts = {"prompt": record.prompt, "messages": record.messages}
    return {name: value for name, value in prompts.items() if value is not None}


def output_line(
    result: RecordResult,
    run: str,
    form: str = "",
    *,
    counts: bool = False,
    model: str = "",
    prompt: Mapping[str, Any] = MappingProxyType({}),
) -> bytes:
    """Return a result's line in the output file, with its newline.

    run: hash of the run's identity. form: the endpoint of a line in OpenAI's batch format, "" for a line in ours. counts: whether
    to include all counts of speculation, which differ between two runs. prompt: the record's prompt, if the line is to have it.
    """
    block = result.speculation
    if not counts:
        block = {key: block[key] for key in ABOUT_THE_TEXT if key in block}
    if form:
        return (
            msgspec.json.encode({**_openai_line(result, run, form, block, model), **prompt}) + b"\n"
        )
    line = {"id": result.id, **prompt, "prompt_sha256": result.prompt_sha256, "text": result.text}
    for name in ("reasoning", "reasoning_cut", "calls"):
        if value := getattr(result, name):
            line[name] = value
    line |= {"finish_reason": result.finish_reason, "usage": result.usage, "speculation": block}
    return msgspec.json.encode({**line, "error": result.error, "run": run}) + b"\n"


def _openai_line(
    result: RecordResult, run: str, form: str, block: dict[str, Any], model: str
) -> dict[str, Any]:
    """Return a line of OpenAI's batch format. Its times are 0, so that equal answers have equal bytes."""
    name = hashlib.sha256(f"{run}\0{result.id}".encode()).hexdigest()[:24]
    response = error = None
    if result.error is None:
        choices = [choice_of(form, 0, result)]
        body = body_of(form, f"cmpl-{name}", model, 0, choices)
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
        raise InputError(
            "-o - would be stdout, from which no batch resumes", "name a file, such as OUT.jsonl"
        )
    folder = out.endswith(("/", os.sep)) or Path(out).is_dir()
    if lines.get("prompts") and (folder or out.lower().endswith(".csv")):
        raise InputError("--with-prompt is for JSON lines", "give -o OUT.jsonl, or leave it out")
    if folder:
        return TextFiles(Path(out), inputs, reading.per, overwrite=overwrite)
    if out.lower().endswith(".csv"):
        return TableFile(Path(out), inputs, reading, overwrite=overwrite)
    made = JsonLines(Path(out), inputs, overwrite=overwrite, **lines)  # its errors matter more
    if Path(out).suffix.lower() not in ("", ".jsonl", ".ndjson"):
        raise InputError(
            f"-o {as_text(out)} has no known ending",
            "use OUT.jsonl for JSON lines, OUT.csv for a table or DIR/ for text files",
        )
    return made


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass
class RunProgress:
    """Counts of a run.

    kept: records finished by an earlier run. done: records finished by this one, answered or failed. failed: includes those of
    earlier runs. verified, accepted: drafted tokens.
    """

    records: int
    kept: int = 0
    done: int = 0
    answered: int = 0
    failed: int = 0
    tokens: int = 0
    verified: int = 0
    accepted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

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

    retry_failed: whether to answer failed records again. Entering the block raises BatchWriteError if another process writes
    this output, and ResumeMismatch if it belongs to another run. Nothing has been computed by then.
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
        requests = "".join(f"{record.id}\0{record.sha256}\n" for record in records)
        inputs = hashlib.sha256(requests.encode("utf-8", "backslashreplace")).hexdigest()
        self.run = {**answerer.identity(), "inputs": inputs}
        self.name = hashlib.sha256(msgspec.json.encode(self.run)).hexdigest()[:16]
        self.journal: Journal | None = None
        self._todo: list[int] = []

    def __enter__(self) -> FileRun:
        earlier = self.output.inspect(self.name, self.records)
        failed = earlier.count(None)
        retries = self.retry_failed and failed > 0
        if earlier and not retries and not self.output.journal.exists():
            self.summary.kept, self.summary.failed = len(self.records), failed
            return self
        journal = Journal(self.output.journal, self.run, anew=self.output.overwrite)
        try:
            self._begin(journal, earlier)
        except BaseException:
            journal.close()
            raise
        return self

    def _begin(self, journal: Journal, earlier: Sequence[bytes | None]) -> None:
        self.output.check(journal, self.records)
        retried = journal.failed if self.retry_failed else set()
        done = {i for i, line in enumerate(earlier) if line} | journal.places.keys()
        done -= retried
        self._todo = [i for i in range(len(self.records)) if i not in done]
        self.summary.kept, self.summary.failed = len(done), len(journal.failed - retried)
        self.journal = journal

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
                journal.append(result)
                self.summary.count(result)
                report(result)
        finally:
            journal.sync()

    def assemble(self) -> None:
        if self.journal is not None:
            self.output.assemble(self.journal, self.records)

    def __exit__(self, *_: object) -> None:
        if self.journal is not None:
            self.journal.close()
