"""Benchmarks: loads, trials and their figures. Imports the contract alone."""
