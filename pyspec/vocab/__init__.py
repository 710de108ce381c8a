"""The tokenizer of a vocabulary, which no input can crash."""
