"""Text and tokens: text from streamed tokens, a tokenizer that no input can crash, and chat prompts as tokens."""
