"""The chat: a conversation, the model that answers it, its commands and how it looks."""

TWICE_S = 2.0
"""A second Ctrl-C within so many seconds means leaving, in an answer as at the prompt."""
