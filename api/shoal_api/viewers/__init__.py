"""The state of the pool for its viewers, and streams of events."""
