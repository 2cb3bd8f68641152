"""How a run goes on: the one loop, randomness, compiled programs, and runs on disk."""
