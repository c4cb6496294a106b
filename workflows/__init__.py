"""Command line, demo, and reports."""
