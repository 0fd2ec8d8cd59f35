"""The files of a source: on this machine, at an address or in a store, packed or not, as lines or columns."""
