"""Search by quantised vectors, exact and approximate. Imports the contract, `avx512` and `files`."""
