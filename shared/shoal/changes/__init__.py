"""Changes of indexes that workers serve, and the logs of changes in Redis. Imports the contract, broker and records."""
