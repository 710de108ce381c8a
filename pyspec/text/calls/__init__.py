"""Tool calls as each family of models writes them: readers and grammars."""
