"""Compatible protocols of other services, one file for each family, with the dialect of its errors in `dialects`.

Imports the schema, `context`, `enqueue` and `served_model`.
"""
