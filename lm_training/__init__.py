"""The Megatron-core decoder, trained from the corpus files."""
