"""Where the posterior is, and what shape it has."""
