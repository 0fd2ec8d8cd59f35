"""Long jobs for clients: submit, read, cancel, retry and delete them. Imports the contract and the broker."""
