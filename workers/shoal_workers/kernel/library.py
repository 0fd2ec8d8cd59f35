"""The compiled kernel, a shared library beside its source. `python -m shoal_workers.kernel.library` compiles it.

`scripts/install` runs this command. A built wheel has a library for each target (`workers/hatch_build.py`). The
library's name has the digest of the source and of the compiler's options, so that a worker never loads the library of
another release. The library lies beside the code, so a program that can replace it can also change the code.
"""

import os
import platform
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from shoal_workers.process import processors

SOURCE = Path(__file__).with_name("kernel.cpp")

#: The options of the compiler for every target. Warnings are off, because the headers of g++ 12 cause thousands. The
#: compiler's libraries are linked into the file: only the used parts, hidden from other libraries of the process. Thus
#: an older glibc suffices.
FLAGS = "-O3 -std=c++20 -ffp-contract=fast -fno-math-errno -fno-trapping-math -w -shared -fPIC -pthread"
FLAGS += " -static-libstdc++ -static-libgcc -Wl,--gc-sections -Wl,--exclude-libs,ALL"

#: Longest time to compile, in seconds. Usually it takes 10 s.
COMPILE_WITHIN_S = 300.0


class Target(NamedTuple):
    """A kind of processor that a library is compiled for: the compiler's options for its instructions, and its flags.

    `flags` are Linux's names. `engine` is the fastest engine in the library, `precisions` are the engine's precisions,
    the default first, and `vectors` names the instructions with which the engine multiplies.
    """

    engine: str
    precisions: tuple[str, ...]
    vectors: str
    options: str
    flags: tuple[str, ...]


_AVX2 = ("avx", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "avx2")  # x86-64-v3
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")  # x86-64-v4

_X86 = "-mtune=znver3 -mprefer-vector-width=512 -march=x86-64"
_VNNI, _BF16 = f"{_X86}-v4 -mavx512vnni", f"{_X86}-v4 -mavx512vnni -mavx512bf16"
_ARM = "-fno-schedule-insns -march=armv8"  # without -fno-schedule-insns, g++ 12 spills sums to memory

BF16 = Target("avx512", ("bf16", "int8"), "AVX-512", _BF16, (*_AVX512, "avx512_vnni", "avx512_bf16"))
AVX512_VNNI = Target("avx2", ("f32", "int8"), "AVX-512", _VNNI, (*_AVX512, "avx512_vnni"))
AVX512 = Target("avx2", ("f32",), "AVX-512", f"{_X86}-v4", _AVX512)
AVX_VNNI = Target("avx2", ("f32", "int8"), "AVX2", f"{_X86}-v3 -mavxvnni", (*_AVX2, "avx_vnni"))
AVX2 = Target("avx2", ("f32",), "AVX2", f"{_X86}-v3", _AVX2)

ARM_BF16 = Target("neon", ("bf16", "int8", "f32"), "NEON", f"{_ARM}.2-a+dotprod+bf16", ("asimd", "asimddp", "bf16"))
ARM_DOT = Target("neon", ("f32", "int8"), "NEON", f"{_ARM}.2-a+dotprod", ("asimd", "asimddp"))
NEON = Target("neon", ("f32",), "NEON", f"{_ARM}-a", ("asimd",))

#: The targets of this kind of machine, the fastest first.
TARGETS = (ARM_BF16, ARM_DOT, NEON) if platform.machine() == "aarch64" else (BF16, AVX512_VNNI, AVX512, AVX_VNNI, AVX2)


class CannotCompile(Exception):
    """The reason why the kernel cannot be compiled on this machine."""


def own_targets() -> list[Target]:
    """Return the targets that this processor runs with its fastest engine, the fastest target first."""
    own = [target for target in TARGETS if not processors.lacking(target.flags)]
    return [target for target in own if target.engine == own[0].engine]


def own_target() -> Target | None:
    """Return the fastest compiled target, or the fastest target if none is compiled; None if there is no target."""
    return max(own_targets(), key=lambda target: path(target).exists(), default=None)


def path(target: Target) -> Path:
    """Return the path of the kernel that is compiled for the target. The file may be missing."""
    digest = sha256(SOURCE.read_bytes() + f"{FLAGS} {target.options}".encode()).hexdigest()[:16]
    return SOURCE.with_name(f"kernel-{digest}.so")


def compile_kernel(target: Target) -> None:
    """Compile the kernel for the target, and remove other releases' kernels. Raises CannotCompile."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise CannotCompile(f"it is for Linux on x86-64 or ARM, not for {platform.system()} on {platform.machine()}")
    compiler = shutil.which("g++")
    if not compiler:
        raise CannotCompile("there is no g++: install it (version 11 or later)")
    library = path(target)
    new = library.with_suffix(f".{os.getpid()}")
    try:
        command = [compiler, *target.options.split(), *FLAGS.split(), str(SOURCE), "-o", str(new)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=COMPILE_WITHIN_S)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no reason given"]
            raise CannotCompile(f"g++ fails (version 11 or later is needed): {lines[0]:.200}")
        new.chmod(0o755)
        new.replace(library)
        for old in set(library.parent.glob("kernel-*.so")) - set(map(path, TARGETS)):
            old.unlink(missing_ok=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    finally:
        if new.exists():  # a read-only file system refuses even to delete a missing file
            new.unlink()


def main() -> None:
    """Compile the kernel for this processor, if it is a target, or print why that fails."""
    reasons: list[CannotCompile] = []
    for target in own_targets():  # an old assembler may lack instructions of the fastest target
        if path(target).exists():
            return
        if not reasons:
            print(f"  compiling the engine {target.engine}", flush=True)
        try:
            return compile_kernel(target)
        except CannotCompile as error:
            reasons.append(error)
    if reasons:
        reason = f"{reasons[0]}; then type python -m shoal_workers.kernel.library"
        print(f"  the engine {target.engine} is left out, and OpenVINO runs: {reason}", flush=True)


if __name__ == "__main__":
    main()
