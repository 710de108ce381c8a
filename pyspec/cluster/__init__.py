"""Batches and servers over many machines, by Ray. Nothing else imports it."""
