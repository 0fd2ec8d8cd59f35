"""The figures for viewers of a pool: its history, its workers, recent jobs. Imports the contract and the queue."""
