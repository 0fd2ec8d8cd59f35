"""Embedding a file into a folder of vectors, in parts. Finished parts survive every restart.

Imports shoal, queue, client and records.
"""
