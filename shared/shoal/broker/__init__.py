"""Redis: connections to it, the errors it raises, and the server that `shoal serve` starts. Imports errors only."""
