"""The cache in Redis: vectors of texts that were embedded before. Imports the contract, the broker and the queue."""
