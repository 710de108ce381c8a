"""Requests: records of batches, and bodies of HTTP APIs."""
