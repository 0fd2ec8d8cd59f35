"""The steps of a build, one file each."""
