"""The command line: one module a subcommand, glue alone."""
