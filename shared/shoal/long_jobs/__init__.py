"""Long jobs for clients: submit, read, pause, resume and cancel them. Imports the contract and the broker."""
