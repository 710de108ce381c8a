"""The chat: a conversation, its commands and how it looks; it talks to models by one protocol."""
