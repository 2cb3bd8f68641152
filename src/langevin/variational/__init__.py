"""Approximations q of a posterior, and the bound that they are fitted by."""
