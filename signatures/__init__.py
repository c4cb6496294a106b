"""What the data says about a token."""
