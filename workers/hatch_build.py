"""The build hook of wheels, which adds the kernel, compiled for each target that this machine can compile for."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from platform import machine
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from shoal_workers.kernel import library


class KernelHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles the kernel into the wheel. An editable installation has the kernel beside its source instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled kernels and their platform tag to the wheel, and print why a kernel is missing."""
        if version == "editable":
            return
        for target in library.TARGETS:
            try:
                if not library.path(target).exists():
                    library.compile_kernel(target)
            except library.CannotCompile as error:
                self.app.display_warning(f"The wheel has no compiled kernel for {target.flags[-1]}: {error}")
        if not (kernels := [kernel for kernel in map(library.path, library.TARGETS) if kernel.exists()]):
            return
        build_data["force_include"] |= {str(kernel): f"shoal_workers/kernel/{kernel.name}" for kernel in kernels}
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(kernels)}"


def platform_of(kernels: Iterable[Path]) -> str:
    """Return the platform tag of the kernels: Linux, with the newest glibc version that they need."""
    minors = [int(minor) for path in kernels for minor in re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes())]
    return f"manylinux_2_{max(minors)}_{machine()}" if minors else f"linux_{machine()}"
