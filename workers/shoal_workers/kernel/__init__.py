"""The kernel of the engines avx512, avx2 and neon: C++ that an installation compiles. Imports process and model."""
