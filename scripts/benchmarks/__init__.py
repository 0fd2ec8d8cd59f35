"""The benchmarks of scripts/bench: a file for each scenario, and what they share."""
