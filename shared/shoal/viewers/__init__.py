"""The figures of a pool that viewers show: a snapshot, rates and waits. Imports the contract and the queue."""
