"""Compatible protocols of other services, one file for each family, with the dialect of its errors in `dialects`.

Imports the schema, `context`, `enqueue`, `model_names`, `ranking`, `token_ids`, and from the own routes what they
answer too.
"""
