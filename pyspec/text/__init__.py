"""Text and tokens: text from tokens as they come, a tokenizer that no text can end, and chat prompts as tokens."""
