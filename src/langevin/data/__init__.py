"""Rows, and how they become minibatches."""
