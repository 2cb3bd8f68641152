"""What a user brings, each turned into a `Posterior`."""
