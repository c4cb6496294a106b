"""The tokenised corpus on disk."""
