"""The processes of `shoal serve`, from start to stop. Imports the contract, the broker, the queue and the client."""
