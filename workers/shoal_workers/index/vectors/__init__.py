"""Exact search by vectors, made fast by quantised copies of them. Imports the contract and `files`."""
