"""One file for each group of commands."""
