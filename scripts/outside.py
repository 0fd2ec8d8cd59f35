"""Tries Shoal as a new user with only Docker, and prints the measured times and sizes beside the goals.

It leaves only Docker's build cache behind. Megabytes are 10**6 bytes.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEBIAN = {"trixie": "Debian 13", "bookworm": "Debian 12"}
PARTS = (*DEBIAN, "images")
PACKAGES = "python3 python3-venv ca-certificates curl"
SEARCH = """curl -sf localhost:8080/search -d '{"queries": "europe climate change storm", "k": 3}'"""
START = f"./scripts/run --detach && {SEARCH} | grep -q score"

#: Name of this run's container, and of its compose project. Both are removed at the end.
NAME = f"shoal-outside-{os.getpid()}"
EXEC = ["docker", "exec", "--interactive"]


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    subject: str
    measured: str
    goal: str
    is_met: bool

    def __str__(self) -> str:
        return f"| {self.subject} | {self.measured} | {self.goal} | {'ok' if self.is_met else 'MISSED'} |"


def at_most(subject: str, measured: float, goal: float, unit: str) -> Row:
    """Return the row for a measured number that must not exceed its goal."""
    digits = 1 if unit == "s" else 0
    return Row(subject, f"{measured:,.{digits}f} {unit}", f"≤ {goal:g} {unit}", measured <= goal)


class Failed(Exception):
    """A command failed; the message has the command and the end of its output."""


def run(command: list[str], stdin: bytes | None = None, **variables: str) -> str:
    """Return the output of a command. Raises Failed."""
    done = subprocess.run(command, input=stdin, capture_output=True, env=os.environ | variables, cwd=ROOT)
    output, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode:
        end = "\n".join([*output.splitlines()[-30:], *errors.splitlines()[-30:]])
        raise Failed(f"{' '.join(command)[:200]}: exit code {done.returncode}; its output ends with\n{end}")
    return output


class Machine:
    """A clean Debian in a container, with the committed files and an ordinary user."""

    def prepare(self) -> None:
        """Install the packages that the README names, and give the files to the user. Raises Failed."""
        install = f"apt-get -q update && apt-get -qy install --no-install-recommends {PACKAGES}"
        run([*EXEC, NAME, "sh", "-c", f"{install} && useradd --create-home newcomer"])
        files = subprocess.run(["git", "archive", "HEAD"], stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout
        run([*EXEC, "--user", "newcomer", NAME, "sh", "-c", "mkdir ~/shoal && tar -xC ~/shoal"], stdin=files)

    def run(self, command: str) -> str:
        """Return the output of the user's shell command in the project's folder. Raises Failed."""
        return run([*EXEC, "--user", "newcomer", "--workdir", "/home/newcomer/shoal", NAME, "bash", "-c", command])

    def seconds(self, command: str) -> float:
        """Return the seconds that a command takes."""
        print(f"  {command}", file=sys.stderr)
        begin = time.monotonic()
        self.run(command)
        return time.monotonic() - begin

    def size_mb(self, folder: str) -> float:
        """Return the size of a folder on disk."""
        return int(self.run(f"du -s --block-size=1 {folder}").split()[0]) / 1e6

    def received_mb(self) -> float:
        """Return the megabytes that the container has received over the network so far."""
        lines = self.run("cat /proc/net/dev").splitlines()
        return sum(int(line.split(":")[1].split()[0]) for line in lines if ":" in line and "lo:" not in line) / 1e6


@contextmanager
def clean_machine(release: str) -> Iterator[Machine]:
    """Yield a machine, and remove it at the end."""
    run(["docker", "run", "--detach", "--init", "--name", NAME, f"debian:{release}-slim", "sleep", "infinity"])
    try:
        machine = Machine()
        machine.prepare()
        yield machine
    finally:
        run(["docker", "rm", "--force", "--volumes", NAME])


def debian(release: str, tests: bool) -> Iterator[Row]:
    """Run the README's commands on a clean Debian."""
    label = DEBIAN[release]
    with clean_machine(release) as machine:
        before = machine.received_mb()
        yield at_most(f"{label}: `./scripts/run` to its first hits", machine.seconds(START), 40, "s")
        yield at_most(f"{label}: received", machine.received_mb() - before, 260, "MB")
        yield at_most(f"{label}: `.venv`", machine.size_mb(".venv"), 700, "MB")
        yield at_most(f"{label}: the home folder", machine.size_mb("~/.shoal"), 60, "MB")
        machine.run("./scripts/run --stop")
        yield at_most(f"{label}: second start", machine.seconds(START), 1.5, "s")
        machine.run("./scripts/run --stop")
        for count in ("first", "second") if tests else ():
            took = machine.seconds("./scripts/test")
            yield Row(f"{label}: `./scripts/test`, {count} time", f"passes in {took:.0f} s", "passes", True)


def images() -> Iterator[Row]:
    """Build the images without the cache and start them, then run `scripts/compose-test`."""
    base = re.findall(r"^FROM (\S+)$", (ROOT / "workers/Dockerfile").read_text(), re.MULTILINE)[-1]
    with compose_project() as compose:
        for image in (base, *compose("config", "--images", "redis").split()):
            run(["docker", "pull", image])  # first, so that the time of the pull does not count
        begin = time.monotonic()
        compose("build", "--no-cache")
        compose("up", "--detach", "--wait")
        yield at_most("`docker compose up --build`, until healthy", time.monotonic() - begin, 60, "s")
        for name, goal in (("workers", 300), ("api", 120)):
            size_mb = (size_bytes(f"{NAME}-{name}") - size_bytes(base)) / 1e6
            yield at_most(f"image of {name}, over its base", size_mb, goal, "MB")
    run(["scripts/compose-test"])
    yield Row("`scripts/compose-test`", "passes", "passes", True)


@contextmanager
def compose_project() -> Iterator[Callable[..., str]]:
    """Yield a function that runs `docker compose` for a separate project; remove the project at the end."""

    def compose(*arguments: str) -> str:
        return run(["docker", "compose", *arguments], COMPOSE_PROJECT_NAME=NAME, SHOAL_PORT="0")

    try:
        yield compose
    finally:
        compose("down", "--volumes", "--rmi", "local", "--timeout", "10")


def size_bytes(image: str) -> int:
    """Return the size of an image's layers, which does not depend on how Docker stores them."""
    return sum(map(int, run(["docker", "history", "--human=false", "--format", "{{.Size}}", image]).split()))


def main() -> None:
    """Try the chosen parts and print the table."""
    parser = argparse.ArgumentParser(prog="scripts/outside", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, help="parts to try [default: all]")
    parser.add_argument("--no-tests", action="store_true", help="leave out ./scripts/test, which takes minutes")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    rows = []
    for part in args.parts or PARTS:
        print(f"· {part}", file=sys.stderr)
        try:
            for row in images() if part == "images" else debian(part, not args.no_tests):
                print(row, file=sys.stderr)
                rows.append(row)
        except Failed as error:
            print(error, file=sys.stderr)
            rows.append(Row(part, "FAILED: the lines above say why", "ends without an error", False))
    engine = run(["docker", "version", "--format", "{{.Server.Version}}"]).strip()
    print(f"\n| {os.cpu_count()} processors, Docker {engine} | measured | goal | |\n|---|---|---|---|", *rows, sep="\n")
    sys.exit(not all(row.is_met for row in rows))


if __name__ == "__main__":
    main()
