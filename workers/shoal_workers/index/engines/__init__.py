"""Vector engines, which hold indexes too large for a worker's machine. The module of each engine has a class `Table`.

`engine` opens the table at an address, and `fields` translates the fields of documents and the filters on them.
Imports `files` and `search` of the index, and the `broker`.
"""
