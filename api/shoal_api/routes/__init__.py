"""The routes, one file for each family, which put jobs into the queue.

Imports the schema, `access`, `metrics`, `context`, `enqueue`, `event_stream`, `long_job`, `pool_state`, the snapshot of
`viewers`, the dead letters of the queue, and the files of `bulk` with what `long_jobs` makes public.
"""
