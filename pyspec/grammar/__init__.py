"""Which tokens an answer may consist of, by JSON schemas, regular expressions and grammars. llguidance computes the masks."""
