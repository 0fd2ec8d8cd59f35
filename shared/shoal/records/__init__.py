"""Files of records, read as a stream in constant memory. Imports the contract and `extraction`."""
