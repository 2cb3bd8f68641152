"""Conjugacy, found: a program's log joint density as a polynomial in sufficient statistics, and what follows from that.

program -> reading (the arguments of its distributions) -> a polynomial in statistics -> blocks -> updates
"""
