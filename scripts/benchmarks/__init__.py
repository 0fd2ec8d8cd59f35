"""The benchmarks of scripts/bench: a file for each scenario, and their shared parts."""
