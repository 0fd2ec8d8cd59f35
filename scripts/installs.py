"""Runs each `pip install` line of the documents in a clean environment, and says which lines work."""

import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = "/path/to/shoal"

#: For each extra that installs quickly ("" for no extra), the command that must run after its installation.
CHECKS = {
    "": "import shoal; shoal.Client",
    "[http]": "import shoal; shoal.HttpClient",
    "[jobs]": "import rq, shoal.long_jobs.long_jobs",
    "[s3]": "import s3fs, fsspec; fsspec.filesystem('memory').ls('/'); fsspec.get_filesystem_class('s3')",
}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `pip install` with arguments in a page's code blocks and code spans."""
    blocks = re.findall(r"^```.*?^```", text.replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in [*"\n".join(blocks).splitlines(), *(" ".join(span.split()) for span in spans)]:
        for arguments in re.findall(r"\bpip3? install\s+((?:'[^']*'|\"[^\"]*\"|[^;&|])*)", line):
            if words := shlex.split(arguments, comments=True):
                yield words


def documented() -> dict[tuple[str, ...], str]:
    """Return the arguments of the lines in README.md and docs, each with the first page that has the line."""
    found: dict[tuple[str, ...], str] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for words in commands(page.read_text()):
            found.setdefault(tuple(words), page.name)
    return found


def attempt(words: tuple[str, ...], folder: Path) -> str:
    """Install in a clean environment, or only resolve a slow installation; return the error, or an empty text."""
    check = next((code for extra, code in CHECKS.items() if words[-1] in (f".{extra}", SOURCE + extra)), "")
    python = [str(folder / "bin" / "python")]
    pip = [*python, "-m", "pip", "install", "--quiet"]
    arguments = [word.replace(SOURCE, str(ROOT)) for word in words]
    steps = [[sys.executable, "-m", "venv", str(folder)], [*pip, "--upgrade", "pip"]]
    steps += [[*pip, *arguments], [*python, "-c", check]] if check else [[*pip, "--dry-run", *arguments]]
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, timeout=600)
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return ""


if __name__ == "__main__":
    failed = False
    print("| page | pip install | s | |\n|---|---|---|---|")
    for words, page in documented().items():
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            error = attempt(words, Path(folder))
        failed |= bool(error)
        print(f"| {page} | `{shlex.join(words)}` | {time.monotonic() - begin:.0f} | {error or 'ok'} |", flush=True)
    sys.exit(failed)
