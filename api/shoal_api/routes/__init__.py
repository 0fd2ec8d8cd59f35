"""The routes of Shoal's own API, one file for each family.

Imports the schema, `access`, `metrics`, `context`, `enqueue`, `long_job`, `pool_state`, the snapshot of
`viewers`, the dead letters of the queue, and the files of `bulk` with what `long_jobs` makes public.
"""
