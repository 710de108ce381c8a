"""The chat: a conversation, the model that answers it, its commands and how it looks."""

TWICE_S = 2.0
"""A second Ctrl-C within this time, in seconds, quits, during an answer as well as at the prompt."""
