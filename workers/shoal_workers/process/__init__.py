"""A worker process as others see it, and its processors. Imports the contract, the broker and the queue."""
