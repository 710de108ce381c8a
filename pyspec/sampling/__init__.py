"""How tokens are drawn and verified: chains of samplers, shared noise, the rules of acceptance, ranges of options."""
