"""The files of a version of an index: reading them, and writing them safely. Imports the contract and `changes`."""
