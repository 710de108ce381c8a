"""Speculative decoding with margin-aware acceptance and a companion model, on llama-cpp-python."""
