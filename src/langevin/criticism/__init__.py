"""Looking at a fit critically: the groups that ArviZ reads, and cross-validation."""
