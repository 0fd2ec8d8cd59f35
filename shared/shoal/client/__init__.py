"""The clients of programs and of the API put jobs and get replies. Imports the contract, broker, queue, cache and
`long_jobs`.
"""
