"""The reference experiments, each a short readable program."""
