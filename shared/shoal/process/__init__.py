"""Logs, traces, limits, addresses and lines of progress, for every kind of process. Imports the contract."""
