"""A worker process as others see it. Imports the contract, the broker and the queue; not the worker itself."""
