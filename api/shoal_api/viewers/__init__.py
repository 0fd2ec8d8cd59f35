"""The state of the pool for its viewers."""
