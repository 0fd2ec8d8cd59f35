"""The state of the pool for its viewers, and its figures: rates and waits."""
