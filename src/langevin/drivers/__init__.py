"""The only loops."""
