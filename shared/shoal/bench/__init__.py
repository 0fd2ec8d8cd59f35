"""Load and measurements for a running service. Imports errors only."""
