"""A kernel of our own for one model, which was tried and is not part of the package: docs/performance.md says why."""
