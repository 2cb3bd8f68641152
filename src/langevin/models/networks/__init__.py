"""Networks as programs: what a user brings, its likelihood, the priors of its weights."""
