"""The command line: a module for each larger subcommand, glue alone."""
