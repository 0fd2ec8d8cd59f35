"""Token vectors of documents as int8 codes: 20 documents of 178 tokens are scored in 9 ms of one core, and not in 274.

A text's token vectors have length 1, so each of their numbers is a code from -127 to 127 in units of 1/127. Rows with
the same text share one place in the file of all codes.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexCorrupt
from shoal_workers.index.files.array_file import open_array, save_array, write_header
from shoal_workers.index.files.manifest import TOKEN_FILES, TOKEN_PLACES, TOKENS, Manifest, checksum

#: Largest code.
MAX_CODE = 127

#: The file in the folder of a build with the number of token vectors of each text that is written.
LENGTHS = "token-lengths.records"


def quantised(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the codes of vectors of length 1."""
    return np.rint(vectors * MAX_CODE).astype(np.int8)


def restored(codes: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return the vectors of these codes."""
    return codes * np.float32(1 / MAX_CODE)


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """The token vectors of a version, mapped into memory: int8 `codes`, `[tokens, width]`.

    `places`, int64 `[count, 2]`, has for each row the first of its codes and the end of its last.
    """

    codes: NDArray[np.int8]
    places: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path, manifest: Manifest) -> Self | None:
        """Map the files of a version into memory; return None if it has none. Raises IndexCorrupt."""
        if not manifest.token_digest:
            return None
        codes = open_array(folder / TOKENS, np.int8, (manifest.num_tokens, manifest.token_width))
        places = open_array(folder / TOKEN_PLACES, np.int64, (manifest.count, 2))
        if places.min() < 0 or places.max() > len(codes) or (places[:, 0] > places[:, 1]).any():
            raise IndexCorrupt(f"{folder / TOKEN_PLACES} does not say where token vectors are: build the index again")
        return cls(codes, places)

    @classmethod
    def undamaged(cls, folder: Path, digest: str) -> Self | None:
        """Return the token vectors of a version if the model with this digest made them and their files are whole."""
        try:
            manifest = Manifest.read(folder)
            if manifest.token_digest == digest and all(
                checksum(folder / name) == manifest.checksums[name] for name in TOKEN_FILES
            ):
                return cls.open(folder, manifest)
        except IndexCorrupt:
            pass
        return None

    def of(self, row: int) -> NDArray[np.int8]:
        """Return the codes of a row's token vectors, `[tokens, width]`."""
        start, end = self.places[row].tolist()
        return self.codes[start:end]


class TokenFile:
    """The file of codes of a version that is being built, text after text. `num_texts` and `num_tokens` are written.

    If the files do not have these, because they are damaged, they begin anew.
    """

    def __init__(self, folder: Path, width: int, num_texts: int, num_tokens: int):
        paths = [folder / name for name in (TOKENS, LENGTHS)]
        self._folder, self._width = folder, width
        self._codes, self._lengths = (path.open("r+b" if path.exists() else "w+b") for path in paths)
        num_bytes = os.fstat(self._codes.fileno()).st_size
        lengths = np.fromfile(self._lengths, np.int64, num_texts)
        write_header(self._codes, np.int8, (num_tokens, width))
        is_whole = num_bytes >= self._codes.tell() + num_tokens * width
        goes_on = is_whole and int(lengths.sum()) == num_tokens
        self.num_texts, self.num_tokens = (num_texts, num_tokens) if goes_on else (0, 0)
        self._codes.seek(self.num_tokens * width, os.SEEK_CUR)
        self._codes.truncate()
        self._lengths.seek(8 * self.num_texts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._codes.close()
        self._lengths.close()

    def add(self, texts: Sequence[NDArray[np.int8]]) -> None:
        """Write the codes of the next texts."""
        self._codes.writelines(codes.tobytes() for codes in texts)
        lengths = np.array([len(codes) for codes in texts], np.int64)
        self._lengths.write(lengths.tobytes())
        self.num_texts, self.num_tokens = self.num_texts + len(texts), self.num_tokens + int(lengths.sum())

    def sync(self) -> None:
        """Make what is written safe on the disk."""
        for file in (self._codes, self._lengths):
            file.flush()
            os.fsync(file.fileno())

    def end(self, numbers: NDArray[np.int64]) -> None:
        """Write where each row's codes are; `numbers` has the number of its text for each row, int64 `[count]`."""
        self.sync()
        self._codes.seek(0)
        write_header(self._codes, np.int8, (self.num_tokens, self._width))
        ends = np.cumsum(np.fromfile(self._folder / LENGTHS, np.int64, self.num_texts))
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        save_array(self._folder / TOKEN_PLACES, np.stack([starts, ends], axis=1)[numbers])
