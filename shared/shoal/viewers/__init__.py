"""The figures for viewers of a pool: a snapshot, its history, workers and jobs. Imports the contract and the queue."""
