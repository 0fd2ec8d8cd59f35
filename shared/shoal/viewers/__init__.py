"""The figures for viewers of a pool: a snapshot, and what workers and jobs do. Imports the contract and the queue."""
