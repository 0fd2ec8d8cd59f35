"""Connections to Redis, Redis's errors, and the server that `shoal serve` starts. Imports only the contract."""
