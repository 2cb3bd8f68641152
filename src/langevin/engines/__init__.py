"""Engines: the mathematics of a run, cut into steps. No loop, no clock; all that a run knows is in its state."""
