"""The chat: a conversation, its commands and how it looks; it talks to models by one protocol."""

TWICE_S = 2.0
"""A second Ctrl-C within so many seconds means leaving, in an answer as at the prompt."""
