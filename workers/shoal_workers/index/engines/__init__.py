"""Vector engines that hold indexes too large for a worker's machine, each in a module of its own.

`engine` finds the module of an address, and `fields` translates the fields of documents and the filters on them.
Imports `files` and `search` of the index.
"""
