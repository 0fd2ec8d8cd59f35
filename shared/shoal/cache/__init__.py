"""The cache: vectors of texts that were embedded before, in Redis. Imports the contract, the broker and the queue."""
