"""Requests: records of batches, bodies of HTTP APIs, tools that take text."""
