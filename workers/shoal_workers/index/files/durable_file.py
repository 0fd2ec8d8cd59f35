"""Writing files and folders so that they survive a power failure."""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a small file in one step: readers see the old text or the new one, even after a power failure."""
    scratch = path.with_name(f".{path.name}-{os.getpid()}")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def sync_files(folder: Path) -> None:
    """Make the files in a folder, and their names, safe on the disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder safe on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
