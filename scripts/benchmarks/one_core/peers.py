"""The engines of the scenario `encoders`: functions that open them, and the peers' files with the same weights."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from stack import model

from benchmarks.engine import Embed, open_shoal
from benchmarks.plan import own_process, say
from shoal_workers.model.download import find_source


def source() -> Path:
    """Return the folder of the original model."""
    return find_source(model().name)


def prepared(folder: Path, texts: Sequence[str]) -> Path:
    """Make the missing files in the folder, if the libraries are installed; return the folder.

    `texts` are the examples for the ranges of 8-bit activations.
    """
    for name, (package, make) in MAKERS.items():
        if find_spec(package) and not (folder / name).exists():
            say(f"encoders: making {folder / name}")
            folder.mkdir(parents=True, exist_ok=True)
            with own_process() as process:  # `make` loads torch, which this process must not do
                process.submit(make, source(), folder, texts).result()
    return folder


def _make_onnx(source: Path, folder: Path, _: Sequence[str]) -> None:
    from sentence_transformers import (
        SentenceTransformer,
        export_dynamic_quantized_onnx_model,
        export_optimized_onnx_model,
    )

    original = SentenceTransformer(str(source), backend="onnx")
    original.save_pretrained(str(folder))
    export_optimized_onnx_model(original, "O3", str(folder))
    export_dynamic_quantized_onnx_model(original, "avx512_vnni", str(folder))


def _make_openvino(source: Path, folder: Path, texts: Sequence[str]) -> None:
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    examples = folder / "examples"
    examples.mkdir(exist_ok=True)
    (examples / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:1_000]))
    original = SentenceTransformer(str(source), backend="openvino")
    original.save_pretrained(str(folder))
    export_static_quantized_openvino_model(original, None, str(folder), str(examples), "default", "train", "text")


def _make_gguf(source: Path, folder: Path, _: Sequence[str]) -> None:
    import gguf  # type: ignore[import-not-found]
    from gguf import GGMLQuantizationType as Type
    from safetensors.numpy import load_file

    for name, kind in GGUF_TYPES.items():
        writer = gguf.GGUFWriter(folder / name, "bert")
        _describe(writer, source, gguf)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 6)
        for key, weights in load_file(source / "model.safetensors").items():
            if key.startswith("pooler") or "position_ids" in key:
                continue
            found = names.get_name(key, try_suffixes=(".weight", ".bias"))
            is_product = weights.ndim == 2 and "position" not in key and "token_type" not in key
            as_type = Type[kind] if is_product else Type.F32
            writer.add_tensor(found, gguf.quants.quantize(weights, as_type), raw_dtype=as_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def _describe(writer: Any, source: Path, gguf: Any) -> None:
    """Write the model's sizes and its vocabulary. Words begin with a mark; other pieces lose their ##."""
    config = json.loads((source / "config.json").read_text())
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(config["type_vocab_size"])
    words = (source / "vocab.txt").read_text().splitlines()
    special = {"[PAD]": "pad", "[UNK]": "unk", "[CLS]": "bos", "[SEP]": "sep", "[MASK]": "mask"}
    writer.add_tokenizer_model("bert")
    writer.add_token_list(
        [word if word in special else word[2:] if word[:2] == "##" else "\u2581" + word for word in words]
    )
    types = gguf.TokenType
    writer.add_token_types([types.CONTROL if word in special else types.NORMAL for word in words])
    for word, name in special.items():
        getattr(writer, f"add_{name}_token_id")(words.index(word))
    writer.add_eos_token_id(words.index("[SEP]"))


#: The types of the weights in files for llama.cpp.
GGUF_TYPES = {"minilm-f16.gguf": "F16", "minilm-q8.gguf": "Q8_0"}

#: For each kind of file: the file that is made last, the package that reads it, and the function that makes all files.
MAKERS: dict[str, tuple[str, Callable[[Path, Path, Sequence[str]], None]]] = {
    "onnx/model_qint8_avx512_vnni.onnx": ("optimum", _make_onnx),
    "openvino/openvino_model_qint8_quantized.xml": ("nncf", _make_openvino),
    "minilm-q8.gguf": ("gguf", _make_gguf),
}


def _open_shoal(_: Path, **settings: Any) -> Embed:
    return open_shoal(1, **settings)


def _open_sentence_transformers(folder: Path, backend: str, **more: Any) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    if backend == "onnx":
        from onnxruntime import SessionOptions  # type: ignore[import-not-found]

        (options := SessionOptions()).intra_op_num_threads = 1
        more |= {"provider": "CPUExecutionProvider", "session_options": options}
    path = source() if backend == "torch" else folder
    original: Any = SentenceTransformer(str(path), device="cpu", backend=backend, model_kwargs=more)
    settings = {"normalize_embeddings": True, "show_progress_bar": False}
    return lambda texts: original.encode(texts, batch_size=len(texts), **settings)


def _open_fastembed(folder: Path, file: str) -> Embed:
    from fastembed import TextEmbedding  # type: ignore[import-not-found]
    from fastembed.common.model_description import ModelSource, PoolingType  # type: ignore[import-not-found]

    about: dict[str, Any] = {"pooling": PoolingType.MEAN, "normalization": True, "dim": 384, "model_file": file}
    TextEmbedding.add_custom_model("minilm", sources=ModelSource(hf="minilm"), **about)
    embedding: Any = TextEmbedding("minilm", threads=1, specific_model_path=str(folder))
    embedding.model.tokenizer.enable_truncation(256)  # like sentence-transformers; a file of the model says 128
    return lambda texts: np.array([*embedding.embed(texts, batch_size=len(texts))])


def _open_llama(folder: Path, file: str) -> Embed:
    import llama_cpp  # type: ignore[import-not-found]

    defaults = llama_cpp.llama_model_default_params()
    defaults.use_extra_bufts = False  # with its own layout for AMX, llama.cpp ended with an illegal instruction
    llama_cpp.llama_cpp.llama_model_default_params = lambda: defaults
    sizes = dict.fromkeys(("n_ctx", "n_batch", "n_ubatch"), LLAMA_TOKENS)
    threads = {"n_threads": 1, "n_threads_batch": 1}
    llama = llama_cpp.Llama(str(folder / file), embedding=True, flash_attn=True, verbose=False, **sizes, **threads)
    return lambda texts: np.array(llama.embed(list(texts), normalize=True))


#: Tokens of a pass of llama.cpp. Its attention takes time for each pair of tokens, even of different texts.
LLAMA_TOKENS = 512

#: The engine with the reference vectors. ST is sentence-transformers.
REFERENCE = "ST torch f32"

_OPENVINO = {"ov_config": {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}}
_ONNX, _ONNX_INT8 = "onnx/model_O3.onnx", "onnx/model_qint8_avx512_vnni.onnx"


def _original(backend: str, **more: Any) -> tuple[str, Callable[[Path], Embed]]:
    """Return the package and the opening function of sentence-transformers with one of its backends."""
    package = {"torch": "sentence_transformers", "onnx": "optimum", "openvino": "nncf"}[backend]
    return package, partial(_open_sentence_transformers, backend=backend, **more)


#: Each engine by name: the package that it needs, and the function that opens it from the folder.
OPENERS: dict[str, tuple[str, Callable[[Path], Embed]]] = {
    "shoal bf16, openvino": ("openvino", partial(_open_shoal, precision="bf16", engine="openvino")),
    "shoal int8, openvino": ("openvino", partial(_open_shoal, precision="int8", engine="openvino")),
    "shoal f32, openvino": ("openvino", partial(_open_shoal, precision="f32", engine="openvino")),
    "shoal f32, avx2": ("shoal", partial(_open_shoal, precision="f32", engine="avx2")),
    "shoal bf16, avx512": ("shoal", partial(_open_shoal, precision="bf16", engine="avx512")),
    "shoal int8, avx512": ("shoal", partial(_open_shoal, precision="int8", engine="avx512")),
    REFERENCE: _original("torch"),
    "ST torch bf16": _original("torch", dtype="bfloat16"),
    "ST ONNX f32": _original("onnx", file_name=_ONNX),
    "ST ONNX int8": _original("onnx", file_name=_ONNX_INT8),
    "ST OpenVINO": _original("openvino", file_name="openvino/openvino_model.xml", **_OPENVINO),
    "ST OpenVINO int8": _original("openvino", file_name="openvino/openvino_model_qint8_quantized.xml", **_OPENVINO),
    "fastembed f32": ("fastembed", partial(_open_fastembed, file=_ONNX)),
    "fastembed int8": ("fastembed", partial(_open_fastembed, file=_ONNX_INT8)),
    "llama.cpp f16": ("llama_cpp", partial(_open_llama, file="minilm-f16.gguf")),
    "llama.cpp q8_0": ("llama_cpp", partial(_open_llama, file="minilm-q8.gguf")),
}
