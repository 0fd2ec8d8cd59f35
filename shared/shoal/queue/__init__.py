"""Jobs in Redis: put, taken, answered, and kept when they cannot be. Imports the contract and the broker."""
