"""The store of indexes, as in S3: versions are uploaded to it, and copied from it to the machines of workers.

Imports the contract, `files` and the versions of the `index`; knows no build.
"""
