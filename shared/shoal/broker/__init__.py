"""Redis: connections to it, its errors, and the server that `shoal serve` starts. Imports the contract alone."""
