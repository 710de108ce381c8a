"""LangChain builds its own `llama_cpp.Llama`; after `install` it builds a `SpeculativeLlama`.

pip install langchain-community
python with_langchain.py MODEL.gguf
"""

import sys

import pyspec

pyspec.install(draft="auto")

from langchain_community.llms import LlamaCpp  # noqa: E402 - after install, though before would do

llm = LlamaCpp(model_path=sys.argv[1], n_ctx=512, n_batch=512, max_tokens=48, verbose=False)
print(llm.invoke("Question: Name the planets. Answer:"))
print(llm.client.last_speculation.sentence)
