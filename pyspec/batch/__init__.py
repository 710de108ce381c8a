"""Batches: many prompts over one set of models, from Python and from files."""

from pyspec.batch.maker import Settings
from pyspec.batch.reading import Reading
from pyspec.batch.records import Failure, Record, Result, Usage
from pyspec.batch.run import Batch

__all__ = ["Batch", "Failure", "Reading", "Record", "Result", "Settings", "Usage"]
