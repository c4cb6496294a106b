"""The paper's controlled tasks: enumerated data, toy models, one experiment for each figure."""
