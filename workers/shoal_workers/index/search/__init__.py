"""The parts of a search besides vectors: fields, filters, groups, pages, and documents that were added since the build.

This package uses neither builds nor stores. Imports the contract, `changes`, `files`, `lexical` and `vectors`.
"""
