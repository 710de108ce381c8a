"""The chat: a conversation, the model that answers it, its commands and how it looks."""

from __future__ import annotations

TWICE_S = 2.0  # a second Ctrl-C within this time, in seconds, quits, during an answer as well as at the prompt
SHOW, HIDE, UNASKED = "show", "hide", "off"  # reasoning; UNASKED asks the model for none
