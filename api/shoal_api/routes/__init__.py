"""The routes, one file for each family, which put jobs into the queue.

Imports the schema, `access`, `context`, `enqueue`, `long_job`, `pool_state`, `token_ids` and the dead letters of the
queue.
"""
