"""Text and tokens: text from streamed tokens, and chat prompts as tokens."""
