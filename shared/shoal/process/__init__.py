"""Logs, traces, limits, addresses, progress lines and durable files, for every process. Imports the contract."""
