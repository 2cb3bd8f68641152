"""Simulation-based calibration: does a method recover what a model was simulated with, as often as it says?"""
