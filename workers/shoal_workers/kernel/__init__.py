"""The kernel of the engines avx512 and avx2: C++ that an installation compiles. Imports process and model."""
