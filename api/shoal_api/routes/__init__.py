"""The routes of Shoal's own API, one file for each family.

Imports the schema, `access`, `metrics`, `context`, `enqueue`, `long_job`, `pool_state`, the snapshot of
`pool`, the dead letters of the queue, the files of `bulk`, and the public values of `long_jobs`.
"""
