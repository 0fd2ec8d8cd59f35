"""Sources of documents, read as a stream in constant memory. Imports the contract and `extraction`."""
