"""Long jobs as clients see them: submitted, looked at, paused, cancelled. Imports the contract and the broker."""
