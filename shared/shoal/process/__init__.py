"""The needs of every process beside its task: logs, spans, limits, addresses, progress. Imports the contract."""
