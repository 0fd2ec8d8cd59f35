"""The files of a version of an index, and how they are written safely. Imports the contract and `changes`."""
