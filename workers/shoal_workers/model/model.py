"""A model as its own files describe it, and the folder in which it is prepared for serving."""

import hashlib
import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from shoal.errors import ModelMismatch, ModelNotFound
from shoal_workers.model.source import describe, find_source, stamp

#: Raised by one whenever prepared folders change shape, so that old ones are made anew.
LAYOUT = 3

#: What a prepared folder says of its model.
DESCRIPTION = "model.json"


@dataclass(frozen=True, slots=True)
class Model:
    """What a worker must know of a model to serve it, read from the model's own files.

    `digest` is the SHA-256 of the weights. `source` is the folder of the original, which a serving worker only needs
    for the torch engine; `stamp` tells whether its weights have changed since. `shares_rows` is whether the forward
    pass takes rows of several texts each.
    """

    name: str
    source: str
    digest: str
    dimension: int
    max_tokens: int
    pooling: str
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    stamp: str = ""
    shares_rows: bool = False
    layout: int = LAYOUT

    @classmethod
    def read(cls, name: str, source: Path) -> Self:
        """The model in a Sentence Transformers folder.

        Raises ModelNotFound for a missing file and ModelMismatch for weights that are not what they should be.
        """
        return cls(name=name, source=str(source.absolute()), **describe(name, source))._checked()

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The model that was prepared in `folder`.

        Raises ModelNotFound.
        """
        try:
            return cls(**json.loads((folder / DESCRIPTION).read_text("utf-8")))._checked()
        except FileNotFoundError:
            raise ModelNotFound(f"no model is prepared in {folder}: run `shoal model prepare`") from None
        except (OSError, ValueError, TypeError, RecursionError, ModelMismatch) as error:
            raise ModelNotFound(
                f"{folder / DESCRIPTION} describes no model ({error!s:.200}): run `shoal model prepare --force`"
            ) from error

    def save(self, folder: Path) -> None:
        """Writes the description that `open` reads."""
        (folder / DESCRIPTION).write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def _checked(self) -> Self:
        prompts = self.prompts if isinstance(self.prompts, dict) else {None: None}
        words = (self.name, self.source, self.digest, self.pooling, self.stamp, *prompts, *prompts.values())
        sizes = (self.dimension, self.max_tokens)
        if not all(isinstance(word, str) for word in words) or not all(type(n) is int and n > 0 for n in sizes):
            raise ModelMismatch(f"{self.name!r:.100} has a word or a size that is none: use another model")
        if self.default_prompt is not None and self.default_prompt not in list(prompts):
            raise ModelMismatch(f"{self.name} has no prompt of the name of its default: use another model")
        return self

    def prompt_for(self, name: str | None, otherwise: tuple[str, ...] = ()) -> str:
        """The text of the prompt called `name`; without a name the first of `otherwise` that exists, or the default.

        Raises KeyError for a name the model does not have.
        """
        if name is not None:
            return self.prompts[name]
        found = next((known for known in otherwise if known in self.prompts), self.default_prompt)
        return self.prompts[found] if found else ""


def prepared_folder(home: Path, name: str) -> Path:
    """Where the model of that name is prepared."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "--", name).strip("-")[-80:]
    return home / "models" / f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def prepare_if_needed(home: Path, name: str, force: bool = False) -> Path:
    """The folder of the prepared model, which is made first if need be: by another process, because that takes torch.

    Raises ModelNotFound when it fails.
    """
    folder = prepared_folder(home, name)
    if not force and is_prepared(folder):
        return folder
    find_source(name)
    command = [sys.executable, "-P", "-W", "ignore", "-m", "shoal_workers.model.prepare", name, str(folder)]
    with TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)
        _show_progress(f"preparing {name}, once", process)
        output.seek(0)
        if process.returncode:
            raise ModelNotFound(f"{name} could not be prepared: {_last_line(output.read())}")
    return folder


def _show_progress(label: str, process: "subprocess.Popen[bytes]") -> None:
    """Waits for the process, with a dot every second."""
    print(label, end=" ", file=sys.stderr, flush=True)
    while process.poll() is None:
        print(".", end="", file=sys.stderr, flush=True)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
    print(file=sys.stderr)


def _last_line(output: str) -> str:
    line = (output.strip().splitlines() or ["no reason given"])[-1].removeprefix("shoal: ")
    missing = "No module named" in line
    return f"{line}: preparing needs torch once, pip install 'shoal[export]'" if missing else line


def is_prepared(folder: Path) -> bool:
    """Whether `folder` holds a prepared model of this layout whose original, if it is still there, has not changed."""
    try:
        model = Model.open(folder)
    except ModelNotFound:
        return False
    source = Path(model.source)
    return model.layout == LAYOUT and (not source.exists() or stamp(source) == model.stamp)
