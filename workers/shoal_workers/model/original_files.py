"""A model's original, in the format of Sentence Transformers or transformers. Files are read, and no code is run."""

import json
import math
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch, ModelNotFound
from shoal_workers.model import chat_template, weights
from shoal_workers.model.architecture import LATE_CLASS, with_usual_names
from shoal_workers.model.chat_template import Chat
from shoal_workers.model.download import PACKAGED, PACKAGED_DIGEST
from shoal_workers.model.transformer import Linear

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

#: The possible orders of layers, by a model's only output ("" for a text's vector). A "Dense" is one or more layers.
_ORDERS = {
    "": (["Transformer", "Pooling", "Dense", "Normalize"], ["Transformer", "Pooling", "Dense"]),
    "sparse": (["Transformer", "SpladePooling"],),
    "multivector": (["Transformer", "Dense", "MultiVectorMask", "Normalize"], ["Transformer", "Dense"]),
}

#: Files of a model with heads for sparse weights and for vectors of tokens, like BGE-M3.
BESIDE = {"sparse": "sparse_linear.safetensors", "multivector": "colbert_linear.safetensors"}

#: Largest number of tokens of a text in a static model, with the token before each text. model2vec reads 512.
MAX_STATIC_TOKENS = 513

#: Largest JSON file that is read, in bytes. Known models have files under 2 MB, except tokenizer.json.
MAX_JSON_BYTES = 8 << 20


class OriginalFiles:
    """A model's files in `folder`, each read when it is needed. Raises ModelNotFound or ModelMismatch."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def layers(self) -> list[tuple[str, Path]]:
        """The name and the folder of each layer that encodes documents; empty for a model of transformers."""
        if not (self.folder / "modules.json").exists() and (self.folder / "config.json").exists():
            return []
        return [*_modules(self.folder, "document")]

    @cached_property
    def about(self) -> dict[str, Any]:
        """The settings of Sentence Transformers for the whole model."""
        return read_json(self.folder / "config_sentence_transformers.json", optional=True)

    @property
    def is_static(self) -> bool:
        """True for a model that is only a table of vectors."""
        if self.layers:
            return "StaticEmbedding" in dict(self.layers)
        return read_json(self.folder / "config.json").get("model_type") == "model2vec"

    @cached_property
    def transformer(self) -> Path:
        """The folder with the weights, tokenizer.json and, except in some static models, config.json."""
        return dict(self.layers)["StaticEmbedding" if self.is_static else "Transformer"] if self.layers else self.folder

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of config.json, with the names that BERT's settings have, and the settings of LogitScore."""
        found = with_usual_names(read_json(self.transformer / "config.json"))
        return found | (self.layer_config("LogitScore") or {})

    @cached_property
    def width(self) -> Any:
        """The number of values in a token vector of the transformer."""
        return self.config[
            "d_model" if "d_model" in self.config and "hidden_size" not in self.config else "hidden_size"
        ]

    @cached_property
    def tokenizer_config(self) -> dict[str, Any]:
        """The contents of tokenizer_config.json, empty if there is none."""
        return read_json(self.transformer / "tokenizer_config.json", optional=True)

    @cached_property
    def reading(self) -> dict[str, Any]:
        """The settings of Sentence Transformers for texts, from sentence_*_config.json; empty if there are none."""
        found = sorted(self.transformer.glob("sentence_*_config.json"))
        return read_json(found[0]) if found else {}

    @cached_property
    def prompts(self) -> dict[str, Any]:
        """The fields `prompts` and `default_prompt` of `Model`."""
        return {"prompts": self.about.get("prompts") or {}, "default_prompt": self.about.get("default_prompt_name")}

    def layer_config(self, name: str) -> dict[str, Any] | None:
        """Return the settings of the layer, or None if the model has no such layer."""
        folder = dict(self.layers).get(name)
        return read_json(folder / "config.json") if folder else None

    @cached_property
    def only_output(self) -> str:
        """The output "sparse" or "multivector" if a model makes no other output, else an empty string."""
        names = dict(self.layers)
        if "SpladePooling" in names:
            return "sparse"
        is_late = "MultiVectorMask" in names or self.about.get("model_type") in ("ColBERT", "MultiVectorEncoder")
        if not names:
            is_late = LATE_CLASS in (self.config.get("architectures") or ())
        return "multivector" if is_late else ""

    @cached_property
    def query_table(self) -> Path | None:
        """The folder of a table that gives queries their sparse weights; None if the model computes them."""
        of_queries = [*_modules(self.folder, "query")] if self.layers else []
        if of_queries == self.layers:
            return None
        names = [name for name, _ in of_queries]
        if names != ["SparseStaticEmbedding"] or self.only_output != "sparse":
            raise ModelMismatch(
                f"{self.folder} has a Router that sends queries through {', '.join(names)}: use another model"
            )
        return of_queries[0][1]

    @cached_property
    def beside(self) -> dict[str, Path]:
        """The file for each output that the model has in addition to its vector."""
        return {output: self.folder / name for output, name in BESIDE.items() if (self.folder / name).is_file()}

    @cached_property
    def chat(self) -> Chat:
        """The parts of the model's chat template around a pair."""
        path = self.transformer / "chat_template.jinja"
        template = _text(path) if path.exists() else str(self.tokenizer_config.get("chat_template"))
        return chat_template.parse(template, self.prompts["prompts"].get(self.prompts["default_prompt"]))

    @cached_property
    def dense_folders(self) -> list[Path]:
        """The folders of the Dense layers in their order."""
        names = [name for name, _ in self.layers]
        once = [name for n, name in enumerate(names) if name != "Dense" or names[n - 1] != "Dense"]
        if names and (self.only_output or "Dense" in names) and once not in _ORDERS[self.only_output]:
            raise ModelMismatch(f"{self.folder} has layers in the order {', '.join(names)}: use another model")
        return [path for name, path in self.layers if name == "Dense"]

    def pooled_dense(self) -> Linear | None:
        """Return one linear layer in place of the Dense layers after pooling, or None if there are none."""
        return None if self.only_output else self.dense()

    def dense(self) -> Linear | None:
        """Return one linear layer in place of the model's Dense layers, or None if it has none.

        Dense layers come after pooling, except in a late-interaction model. Shoal applies them to token vectors, before
        pooling, with the same result for the mean and for one token. The last one may have a tanh, which is left out
        here and applied to pooled vectors.
        """
        found: Linear | None = None
        for folder in self.dense_folders:
            config, tensors = read_json(folder / "config.json"), weights.read(folder)
            shape = (config.get("out_features"), config.get("in_features"))
            blocks = [f"{key} is {excerpt(config.get(key))}" for key in ("activation_function", "use_residual")]
            may_end = folder == self.dense_folders[-1] and not self.only_output
            if _function(config) not in ("Identity", *(["Tanh"] if may_end else ())) or config.get("use_residual"):
                raise ModelMismatch(f"{folder} has more than a linear layer ({', '.join(blocks)}): use another model")
            matrix, bias = tensors.pop("linear.weight", np.empty(0, np.float32)), tensors.pop("linear.bias", None)
            bias = np.zeros(matrix.shape[:1], np.float32) if bias is None else bias
            if matrix.shape != shape or bias.shape != shape[:1] or tensors:
                raise ModelMismatch(f"the weights in {folder} do not fit its config.json: fetch the model again")
            if shape[1] != (len(found.bias) if found else self.width):
                raise ModelMismatch(f"{folder} does not fit the layer before it: fetch the model again")
            found = (
                Linear(matrix, bias) if found is None else Linear(matrix @ found.weights, matrix @ found.bias + bias)
            )
        return found


def read_properties(name: str, source: Path) -> dict[str, Any]:
    """Return values of the fields of `Model`, from its files. Raises ModelNotFound or ModelMismatch."""
    _refuse_links_out(source)
    original = OriginalFiles(source)
    try:
        return _properties(name, original) | {"weights_state": weights_state(source)}
    except KeyError as error:
        raise ModelMismatch(f"{source} lacks the setting or layer {error!s:.200}: fetch the model again") from error
    except (TypeError, ValueError, AttributeError, OverflowError, OSError) as error:
        raise ModelMismatch(f"{source} is not a model that Shoal knows ({error!r:.200}): use another model") from error


def _properties(name: str, original: OriginalFiles) -> dict[str, Any]:
    if original.is_static:
        found = {"dimension": 1, "pooling": "mean", "max_tokens": MAX_STATIC_TOKENS}  # the dimension is read later
        return found | {"digest": weights.digest(original.transformer)} | original.prompts
    config, layers = original.config, dict(original.layers)
    of_queries = [original.query_table] if original.query_table else []
    folders = (original.transformer, *of_queries, *original.dense_folders)
    digest = weights.digest(*folders, others=original.beside.values())
    if digest != PACKAGED_DIGEST and name == PACKAGED:
        raise ModelMismatch(
            f"the weights of {name} have digest {digest[:12]}…, not {PACKAGED_DIGEST[:12]}…: install it again"
        )
    has_scores = (
        str((config.get("architectures") or [""])[0]).endswith("ForSequenceClassification") and "Pooling" not in layers
    )
    if original.only_output:
        found = {"dimension": 1, "pooling": "", **original.prompts}  # the dimension is read later
    elif has_scores or "LogitScore" in layers:
        found = _read_reranker(name, original)
    else:
        found = _read_embedder(name, original)
    return found | {"digest": digest, "max_tokens": _max_tokens(original)}


def _read_reranker(name: str, original: OriginalFiles) -> dict[str, Any]:
    config, found = original.config, {"dimension": 1, "pooling": "cls", "is_reranker": True}
    if (num_labels := len(config.get("id2label") or "01")) != 1 and "true_token_id" not in config:
        raise ModelMismatch(
            f"{name} has {num_labels} labels, and a reranker makes one score of a pair: use a cross-encoder with one"
        )
    is_decoder = config["model_type"] == "qwen3"  # only the last token of a decoder sees the whole pair
    return found | {"pooling": "lasttoken", "pair_forms": original.chat.forms} if is_decoder else found


def _read_embedder(name: str, original: OriginalFiles) -> dict[str, Any]:
    layers = dict(original.layers or _modules(original.folder, "document"))  # raises an error without modules.json
    pooling = read_json(layers["Pooling"] / "config.json")
    if not pooling.get("include_prompt", True):
        raise ModelMismatch(f"{name} leaves its prompt out of the pooling, which Shoal cannot do: use another model")
    dense = [read_json(folder / "config.json") for folder in original.dense_folders]
    found = _pooling(name, pooling)
    if dense and found == "max":
        raise ModelMismatch(f"{name} has a Dense layer after pooling by max, which Shoal cannot do: use another model")
    dimension = dense[-1]["out_features"] if dense else original.width
    return {
        "dimension": dimension,
        "matryoshka_dimensions": _matryoshka_dimensions(original.config, dimension),
        "pooling": found,
        "ends_in_tanh": bool(dense) and _function(dense[-1]) == "Tanh",
        **original.prompts,
    }


def _matryoshka_dimensions(config: dict[str, Any], dimension: int) -> list[int] | None:
    if not (named := config.get("matryoshka_dimensions")):
        return [] if config.get("is_matryoshka") is True else None
    return sorted({number for number in named if 0 < number <= dimension})


def _function(dense: dict[str, Any]) -> str:
    """Return the name of the function of a Dense layer, from its config.json."""
    return str(dense.get("activation_function")).rpartition(".")[2]


def weights_state(source: Path) -> str:
    """Return the sizes and modification times of weights and settings: a text that changes if a file changes."""
    kinds = ("*.safetensors", "*.json", "*.jinja", "artifact.metadata", "openvino_model.*", "model.onnx")
    stats = [path.stat() for kind in kinds for path in sorted(source.rglob(kind)) if path.is_file()]
    return ",".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


def _refuse_links_out(source: Path) -> None:
    """Raise ModelMismatch for a link out of the folder or the hub's cache, and for anything but files and folders."""
    root = source.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    for path in source.rglob("*"):
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise ModelMismatch(f"{path} leads out of the model's folder: replace the link by the file itself")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ModelMismatch(f"{path} is neither a file nor a folder: remove it")


def _modules(source: Path, route: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of each layer in modules.json; of a Router, the layers of the route."""
    for layer in _read(source / "modules.json", list):
        folder, found = source / layer["path"], [("", layer["type"])]
        if layer["type"].endswith(".Router"):
            router = read_json(folder / "router_config.json")
            if router["structure"].keys() != {"query", "document"}:
                raise ModelMismatch(f"{source} has a Router for {', '.join(router['structure'])}: use another model")
            found = [(name, router["types"][name]) for name in router["structure"][route]]
        for own, kind in found:
            library, _, name = kind.rpartition(".")
            name = _ALIASES.get(name, name)
            if name not in _LAYERS or not (library.startswith("sentence_transformers.") or kind == _PYLATE_DENSE):
                raise ModelMismatch(f"{source} has a {kind} layer, which Shoal does not know: use another model")
            if not (folder / own).resolve().is_relative_to(source.resolve()):
                raise ModelMismatch(
                    f"{source} has its {name} layer in {folder / own}, outside of it: use another model"
                )
            yield name, folder / own


def _pooling(name: str, config: dict[str, Any]) -> str:
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "lasttoken"}
    former = [names.get(k[13:], k[13:]) for k, on in config.items() if k.startswith("pooling_mode_") and on]
    found = config.get("pooling_mode") or former or "mean"
    modes = [found] if isinstance(found, str) else [str(mode) for mode in found]
    if len(modes) != 1 or modes[0] not in names.values():
        raise ModelMismatch(f"{name} pools by {' and '.join(modes)}: use one that pools by mean, max, cls or lasttoken")
    return modes[0]


def _max_tokens(original: OriginalFiles) -> int:
    if own := original.reading.get("max_seq_length"):
        return int(own)
    return int(
        min(original.config["max_position_embeddings"], original.tokenizer_config.get("model_max_length", math.inf))
    )


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Return the map in a JSON file, empty for an `optional` file that is missing. Raises the errors of `_read`."""
    found: dict[str, Any] = {} if optional and not path.exists() else _read(path, dict)
    return found


def _text(path: Path) -> str:
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise ModelMismatch(f"{path} has {size:,} bytes, over the limit of {MAX_JSON_BYTES:,}: use another model")
    return path.read_text("utf-8")


def _read(path: Path, kind: type) -> Any:
    """Return the value in a JSON file. It must be an instance of `kind`. Raises ModelNotFound or ModelMismatch."""
    try:
        if isinstance(found := json.loads(_text(path)), kind):
            return found
        raise ValueError(f"it holds {excerpt(found)}")
    except FileNotFoundError:
        raise ModelNotFound(
            f"{path} is missing: fetch the model again, or save it with Sentence Transformers' save_pretrained"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelNotFound(f"{path} cannot be used ({error!s:.200}): fetch the model again") from error
