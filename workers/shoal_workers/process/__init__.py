"""Heartbeat, measurements, watchdog, crash reports and processors. Imports the contract, the broker and the queue."""
