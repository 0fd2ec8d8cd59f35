"""The kernel of the engine avx512: C++ that an installation compiles, and its weights. Imports process and model."""
