"""The answers to viewers of the pool: its state, its details, and streams of events."""
