"""`python -m shoal` is the `shoal` command."""

from shoal.cli import main

main(prog_name="shoal")
