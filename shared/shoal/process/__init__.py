"""Logs, traces, limits, addresses and progress lines for every kind of process. Imports the contract."""
