"""Exact search by quantised vectors. Imports the contract and `files`."""
