"""The process of a worker. Imports the contract, the broker, the queue and all that a worker is made of."""
