"""The runner of long jobs, without a model. Imports the contract, broker, client, bulk, long_jobs and index."""
