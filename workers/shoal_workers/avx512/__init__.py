"""The kernel of the engine avx512: C++ that an installation compiles, and the weights for it. Imports process, model."""
