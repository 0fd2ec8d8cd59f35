"""The wheel, built by the build backend from a copy of the code, and installed."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from page import ROOT

from shoal_workers.kernel.library import TARGETS

#: Prints whether the code of the working folder has a compiled kernel for each target.
FIND = """import sys; sys.path.insert(0, '')
from shoal_workers.kernel.library import TARGETS, path
print(all(path(target).exists() for target in TARGETS))
"""

#: A kernel that compiles at once. It needs a function that glibc has since 2.25.
SOURCE = """#include <unistd.h>
int one() { char byte; return getentropy(&byte, 1); }
"""

_machine = platform.machine()
_can_compile = platform.libc_ver()[0] == "glibc" and _machine in ("x86_64", "aarch64")
needs_compiler = pytest.mark.skipif(
    not (_can_compile and shutil.which("g++")), reason="the kernel is compiled by g++ for Linux on x86-64 and ARM"
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a copy of the code with another kernel, which is not compiled yet."""
    for name in ("shared", "api", "workers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "workers/shoal_workers/kernel/kernel.cpp").write_text(SOURCE)
    return tmp_path


def build(code: Path, **variables: str) -> Path:
    """Build the wheel; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(command, cwd=code, env=variables, capture_output=True, check=True)
    (wheel,) = (code / "dist").iterdir()
    return wheel


def installed_kernel_exists(wheel: Path) -> bool:
    """Install the wheel into a folder; return True if the wheel had the compiled kernel of its source."""
    site = wheel.parent.with_name("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", site, wheel], check=True)
    done = subprocess.run([sys.executable, "-c", FIND], cwd=site, capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@needs_compiler
def test_a_wheel_is_without_a_kernel_that_the_compiler_refuses(code: Path) -> None:
    refused = "#if defined __AVXVNNI__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC\n#error\n#endif\n"
    (code / "workers/shoal_workers/kernel/kernel.cpp").write_text(refused + SOURCE)
    with ZipFile(build(code, PATH=str(Path(shutil.which("g++") or "").parent))) as wheel:
        assert sum(name.endswith(".so") for name in wheel.namelist()) == len(TARGETS) - 1


@pytest.mark.parametrize(
    ("has_compiler", "platform"),
    [pytest.param(True, f"manylinux_2_25_{_machine}", marks=needs_compiler), (False, "any")],
)
def test_a_wheel_has_the_compiled_kernel_and_names_the_platform(code: Path, has_compiler: bool, platform: str) -> None:
    compiler = Path(shutil.which("g++") or "").parent
    wheel = build(code, PATH=str(compiler if has_compiler else code))
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    assert installed_kernel_exists(wheel) == has_compiler
