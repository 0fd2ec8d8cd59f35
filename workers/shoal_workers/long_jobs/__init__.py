"""The runner of long jobs. It opens no model. Imports the contract, broker, client, bulk, long_jobs and index."""
