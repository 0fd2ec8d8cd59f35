"""Benchmarks: loads, trials and their figures. Imports errors only."""
