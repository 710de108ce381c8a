"""The drop-in for `llama_cpp.Llama`: the class, its generation, and what of llama-cpp-python it mirrors."""
