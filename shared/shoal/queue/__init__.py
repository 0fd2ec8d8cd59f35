"""Jobs in Redis: how they are put, taken, answered, and kept if no worker can answer. Imports contract and broker."""
