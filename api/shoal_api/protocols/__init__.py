"""Compatible protocols of other services, one file for each family: its bodies, its answers and its errors.

Imports the schema, `context`, `enqueue`, and from the own routes what they answer too.
"""
