"""The parts of a search beside vectors: fields, filters, words, groups and pages, and documents added since the build.

Knows neither builds nor stores. Imports the contract, `changes`, `files`, `lexical` and `vectors`.
"""
