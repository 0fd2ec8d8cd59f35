"""The state of the pool for its viewers, and its metrics: rates and waits."""
