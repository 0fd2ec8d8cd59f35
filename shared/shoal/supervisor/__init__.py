"""`shoal serve`: starts, watches and stops its processes. Imports the contract, broker, queue and client."""
