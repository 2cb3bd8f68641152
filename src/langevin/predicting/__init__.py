"""What a model says of rows: predictions, and how good they are."""
