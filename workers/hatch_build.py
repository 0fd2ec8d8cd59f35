"""The build hook of wheels: a wheel has the compiled kernel of the engine avx512 if this machine can compile it."""

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from shoal_workers.avx512 import library


class KernelHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles the kernel into the wheel. An editable installation has the kernel beside its source instead."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernel and its platform to the wheel, or print why the wheel has none."""
        if version == "editable":
            return
        kernel = library.path()
        try:
            if not kernel.exists():
                library.compile_kernel(kernel)
        except library.CannotCompile as error:
            self.app.display_warning(f"The wheel is without the engine avx512: {error}")
            return
        build_data["force_include"][str(kernel)] = f"shoal_workers/avx512/{kernel.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(kernel)}"


def platform_of(kernel: Path) -> str:
    """Return the tag of the platforms that can load the kernel: Linux with the newest glibc whose symbols it needs."""
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", kernel.read_bytes())]
    return f"manylinux_2_{max(minors)}_x86_64" if minors else "linux_x86_64"
