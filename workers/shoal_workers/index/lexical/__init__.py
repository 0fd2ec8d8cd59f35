"""The words of documents: terms, the lexical index of a version with BM25, and snippets. Knows no vectors.

Imports the contract and `files`.
"""
