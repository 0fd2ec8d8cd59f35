"""The runner of long jobs, which holds no model. Imports the contract, the broker and long_jobs."""
