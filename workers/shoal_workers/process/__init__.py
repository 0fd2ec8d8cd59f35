"""A worker process: its start, heartbeat, watchdog, crash reports and processors.

Imports the contract, the broker and the queue; `service` alone imports the worker and all it is made of.
"""
