"""Models whose complete conditionals are known in closed form, and what can be done with them."""
