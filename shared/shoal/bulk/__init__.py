"""Embedding a file into a folder of vectors, in parts that survive every restart. Imports shoal, client and records."""
