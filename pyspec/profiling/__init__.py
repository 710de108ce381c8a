"""What a pair of models, and each tensor type of a target, is worth on this machine."""
