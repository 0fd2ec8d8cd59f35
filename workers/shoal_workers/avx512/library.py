"""The compiled kernel, a shared library beside its source. `python -m shoal_workers.avx512.library` compiles it.

`scripts/install` runs this command, and a wheel that is built has the library (`workers/hatch_build.py`). The library's
name has the digest of the source and of the compiler's options, so that a worker never loads the library of another
release. The library lies beside the code, where only a program that can also change the code can replace it.
"""

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from shoal_workers.process import processors

SOURCE = Path(__file__).with_name("kernel.cpp")

#: The options of the compiler. They name the instructions that the kernel uses, whatever the compiling machine has.
#: Warnings are off, because the headers of g++ 12 give thousands. The compiler's libraries are linked into the
#: file: only the used parts, hidden from other libraries of the process. Thus an older glibc suffices.
FLAGS = "-O3 -std=c++20 -march=x86-64-v4 -mavx512vnni -mavx512bf16 -mtune=znver3 -mprefer-vector-width=512"
FLAGS += " -ffp-contract=fast -fno-math-errno -fno-trapping-math -w -shared -fPIC -pthread"
FLAGS += " -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--exclude-libs,ALL"

#: Longest time to compile, in seconds. Usually it takes 5 s.
COMPILE_WITHIN_S = 300.0


class CannotCompile(Exception):
    """The reason why the kernel cannot be compiled on this machine."""


def path() -> Path:
    """Return the path of the compiled kernel, which may be missing."""
    digest = sha256(SOURCE.read_bytes() + FLAGS.encode()).hexdigest()[:16]
    return SOURCE.with_name(f"kernel-{digest}.so")


def compile_kernel(library: Path) -> None:
    """Compile the kernel into the file `library`, and remove other releases' kernels. Raises CannotCompile."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise CannotCompile(f"it is for Linux on x86-64, and this is {platform.system()} on {platform.machine()}")
    compiler = shutil.which("g++")
    if not compiler:
        raise CannotCompile("there is no g++: install it (version 11 or later)")
    new = library.with_suffix(f".{os.getpid()}")
    try:
        command = [compiler, *FLAGS.split(), str(SOURCE), "-o", str(new)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_WITHIN_S)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no reason given"]
            raise CannotCompile(f"g++ fails (version 11 or later is needed): {lines[0]:.200}")
        new.chmod(0o755)
        new.replace(library)
        for old in set(library.parent.glob("kernel-*.so")) - {library}:
            old.unlink(missing_ok=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    finally:
        with suppress(OSError):  # a read-only file system refuses even to delete a missing file
            new.unlink(missing_ok=True)


def main() -> None:
    """Compile the kernel if this processor can run it, or print why that fails."""
    library = path()
    if library.exists() or processors.lacking_for_avx512():
        return
    print("  compiling the engine avx512", flush=True)
    try:
        compile_kernel(library)
    except CannotCompile as error:
        again = "python -m shoal_workers.avx512.library"
        print(f"  the engine avx512 is left out, and OpenVINO runs: {error}; then type {again}", flush=True)


if __name__ == "__main__":
    main()
