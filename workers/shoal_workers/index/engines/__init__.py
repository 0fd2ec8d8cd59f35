"""PostgreSQL with pgvector as a vector engine, which holds indexes too large for a worker's machine.

`engine` opens the table at an address, and `fields` translates the fields of documents and the filters on them.
Imports `files` and `search` of the index.
"""
