"""A worker process as others see it: heartbeat, watchdog, crash reports, throughput and processors.

Imports the contract, the broker and the queue; not the worker itself.
"""
