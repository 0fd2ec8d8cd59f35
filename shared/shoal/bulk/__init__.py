"""Embedding a file into a folder of vectors, in parts that survive every restart.

Imports shoal, queue, client and records.
"""
