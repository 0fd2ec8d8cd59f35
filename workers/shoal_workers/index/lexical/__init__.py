"""The words of documents: terms of texts, the lexical index of a version with BM25 scores, and snippets.

It uses no vectors. Imports the contract and `files`.
"""
