"""The store of indexes, such as a folder in S3: versions are uploaded to it, and workers' machines copy them.

Imports the contract, `files` and the versions of the `index`; it uses no builds.
"""
