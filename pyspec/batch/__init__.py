"""Batches: many prompts over one set of models, from Python and from files."""

from pyspec.batch.maker import Settings
from pyspec.batch.reading import Reading
from pyspec.batch.run import Batch
from pyspec.requests.records import Record
from pyspec.text.parts import Failure, RecordResult, Result, Usage

__all__ = ["Batch", "Failure", "Reading", "Record", "RecordResult", "Result", "Settings", "Usage"]
