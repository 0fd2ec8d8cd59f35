"""Changes of indexes that are served: a log of them in Redis. Imports the contract, broker and records."""
