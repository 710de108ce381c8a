"""What several files of tests use: models of a few kilobytes, servers, commands in a fork of the test, and scripted answers."""
