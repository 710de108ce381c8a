"""The command line: one module per larger subcommand, with glue code only."""
