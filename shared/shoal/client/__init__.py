"""The clients of programs and of the API put jobs and get replies. Imports the contract, broker, queue, cache, changes,
records and `long_jobs`.
"""
