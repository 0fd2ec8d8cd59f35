"""The client of programs and of the API: puts jobs, gets replies. Imports the contract, the queue and the cache."""
