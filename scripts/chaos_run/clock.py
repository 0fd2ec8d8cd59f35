"""Runs a program with a wrong clock: `clock.py FILE PROGRAM ARGUMENT…`.

FILE has the seconds by which the program's calendar clock is ahead of the machine's clock. The file is read again while
the program runs, because an operator or a time server may set a clock at any time.
"""

import runpy
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

#: Time between two looks at the file, in seconds.
LOOK_EVERY_S = 0.1

_machine_time = time.time
_ahead_s = 0.0


def set_clock(file: Path, ahead_s: float) -> None:
    """Set the clock of the program that was started with the file."""
    new = file.with_suffix(".new")
    new.write_text(str(ahead_s))
    new.replace(file)


def _follow(file: Path) -> None:
    global _ahead_s
    while True:
        with suppress(OSError):
            _ahead_s = float(file.read_text())
        time.sleep(LOOK_EVERY_S)


def main(file: str, program: str, *arguments: str) -> None:
    """Run the program."""
    time.time = lambda: _machine_time() + _ahead_s
    Thread(target=_follow, args=(Path(file),), daemon=True).start()
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
