"""Compatible protocols of other services, one file for each family: its bodies, its answers and its errors.

Imports the schema, `context`, `enqueue`, `pool_state`, and the functions of Shoal's own routes that the protocols
share.
"""
