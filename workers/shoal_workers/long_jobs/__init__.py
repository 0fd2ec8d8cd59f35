"""The runner of long jobs, without a model. Imports the contract, the broker, the client, long_jobs and the index."""
