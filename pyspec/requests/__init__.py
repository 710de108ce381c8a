"""Requests as they come in: records of batches, bodies of APIs, tools that take text."""
