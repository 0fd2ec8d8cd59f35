"""The architectures that Shoal computes itself: random models of each have the outputs of transformers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_reference
from expected_outputs import ExpectedOutputs
from safetensors.numpy import save_file
from tiny_model import edit

from shoal.contract.options import Options
from shoal.errors import BadSetting, ModelMismatch, ModelNotFound
from shoal_workers.encoding.encoder import Encoder
from shoal_workers.model import architecture, parity, weights
from shoal_workers.model.graph import build_graph, core
from shoal_workers.model.model import Model
from shoal_workers.model.prepare import prepare_if_needed
from shoal_workers.model.transformer import Transformer, read_transformer

NAMES = (
    *("bert", "bert, masked", "bert, in parts", "bert, scores", "distilbert", "distilbert, scores"),
    *("roberta", "roberta, scores", "xlm-roberta", "xlm-roberta, scores", "camembert", "mpnet", "mpnet, masked"),
    *("nomic_bert", "nomic_bert, masked", "modernbert", "modernbert, masked", "modernbert, scores"),
    *("modernbert, scores of means", "qwen3", "qwen3, causal", "gte", "gte, masked", "gte, scores"),
    *("gemma3_text", "gemma3_text, causal"),
    *("deberta-v2", "deberta-v2, masked", "deberta-v2, scores"),
)

#: The two types of layers that a model may have.
LAYER_TYPES = ("full_attention", "sliding_attention")

#: Lowest cosine and largest error if f32 numbers of about 1 are computed in another order.
MIN_COSINE, MAX_ERROR = 0.99999, 1e-4


@pytest.fixture(scope="module")
def models(torch_reference: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    run_reference("random_models.py", folder)
    return folder


def read(folder: Path, **changes: object) -> Transformer:
    config = architecture.with_usual_names(json.loads((folder / "config.json").read_text()) | changes)
    assert architecture.find_unsupported(config) == ""
    has_head = "ForSequenceClassification" in config["architectures"][0]
    return read_transformer(config, weights.read(folder), has_head)


def run(transformer: Transformer, expected: ExpectedOutputs, numbers: list[int]) -> tuple[float, float]:
    """Return the largest error and the lowest cosine of the OpenVINO graph for these texts in shared rows."""
    compiled = core().compile_model(build_graph(transformer), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    packing, spans = expected.pack(numbers, transformer.num_positions)
    return expected.errors(numbers, spans, compiled(packing)[0])


@pytest.mark.wide
@pytest.mark.parametrize("name", NAMES)
def test_token_vectors_and_scores_equal_the_outputs_of_transformers(models: Path, name: str) -> None:
    expected, transformer = ExpectedOutputs(models / name), read(models / name)
    longest = max(range(len(expected.texts)), key=lambda n: len(expected.texts[n]))
    for numbers in (list(range(len(expected.texts))), [0], [1], [longest]):
        error, cosine = run(transformer, expected, numbers)
        assert error < MAX_ERROR
        assert cosine > MIN_COSINE
    assert len(expected.texts[longest]) == transformer.num_positions
    assert json.loads((models / "packed.json").read_text())[name] < MAX_ERROR  # the pass of the torch engine


#: Settings that change the arithmetic, by model, and the name of the setting in the error, if it is another one.
UNSUPPORTED: dict[str, list[tuple[Any, ...]]] = {
    "bert": [
        *[("model_type", kind) for kind in ("gpt2", ["bert"])],
        *[("architectures", names) for names in (["JinaBertModel"], "Bert")],
        ("position_embedding_type", "relative_key"),
        *[(name, True) for name in ("is_decoder", "is_causal", "add_cross_attention")],
        *[("hidden_act", name) for name in ("quick_gelu", ["gelu"], None)],
        ("auto_map", {"AutoModel": "code.Model"}),
        ("quantization_config", {"bits": 4}),
    ],
    "modernbert": [
        *[(name, True) for name in ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "is_causal")],
        ("classifier_activation", "relu"),
        ("classifier_pooling", "max"),
        *[("layer_types", kinds) for kinds in (["full_attention", "chunked_attention"], "full_attention")],
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("rope_parameters", {"full_attention": {"rope_theta": 1.0}}),
        ("rope_parameters", {kind: {"factor": 2.0} for kind in LAYER_TYPES}),
        ("rope_parameters", {kind: {"rope_type": "yarn"} for kind in LAYER_TYPES}, "rope_type"),
    ],
    "nomic_bert": [
        ("auto_map", {"AutoModel": "acme/code.NomicBertModel"}),
        ("rotary_scaling_factor", 2.0),
        ("activation_function", "geglu", "hidden_act"),
        ("architectures", ["NomicBertForSequenceClassification"]),
        ("rope_parameters", {"rope_type": "dynamic", "factor": 2.0}),
    ],
    "gte, scores": [("type_vocab_size", 2)],  # a reranker whose token types have no positions
    "new": [
        ("auto_map", {"AutoModel": "acme/code.NewModel"}),
        ("rope_scaling", {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}),
        ("rope_scaling", {"type": "dynamic", "factor": 8.0}),
        ("position_embedding_type", "absolute"),
        ("layer_norm_type", "rms_norm"),
        ("logn_attention_scale", True),
        ("pack_qkv", False),
    ],
    "qwen3": [
        *[(name, True) for name in ("use_sliding_window", "attention_bias")],
        ("is_causal", False),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("architectures", ["Qwen2ForSequenceClassification"]),
        ("rope_parameters", {"rope_type": "yarn", "factor": 4.0}),
    ],
    "gemma3_text": [
        *[("use_bidirectional_attention", value) for value in (False, None)],
        ("attn_logit_softcapping", 30.0),
        ("attention_bias", True),
        ("layer_types", None),
        ("rope_scaling", {"factor": 8.0, "rope_type": "linear"}),
        ("architectures", ["Gemma3ForSequenceClassification"]),
    ],
    "deberta-v2": [
        *[("relative_attention", value) for value in (False, None)],
        ("position_biased_input", True),
        ("pos_att_type", ["c2p"]),
        ("norm_rel_ebd", None),
        ("conv_kernel_size", 3),
        ("pooler_hidden_act", "relu"),
        ("embedding_size", 16),
    ],
}


def config_of(models: Path, name: str) -> dict[str, Any]:
    """Return the config.json of a model. For "new", it is like the file of gte-base-en-v1.5, which was not at hand."""
    if name != "new":
        found: dict[str, Any] = json.loads((models / name / "config.json").read_text())
        return found
    new = config_of(models, "gte, masked") | {"model_type": "new", "architectures": ["NewForMaskedLM"]}
    new |= {"rope_theta": 20_000, "rope_scaling": {"type": "ntk", "factor": 8.0}, "position_embedding_type": "rope"}
    new |= {"layer_norm_type": "layer_norm", "logn_attention_scale": False, "pack_qkv": True, "unpad_inputs": False}
    new |= {"auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"}}
    return new | {"rope_parameters": None}


@pytest.mark.parametrize("model", UNSUPPORTED)
def test_a_setting_that_changes_the_arithmetic_is_unsupported(models: Path, model: str) -> None:
    assert {name.partition(",")[0] for name in NAMES} | {"new"} == set(architecture.ARCHITECTURES)
    config = config_of(models, model)
    assert architecture.find_unsupported(architecture.with_usual_names(config)) == ""
    for name, value, *told in UNSUPPORTED[model]:
        changed = architecture.with_usual_names(config | {name: value})
        assert architecture.find_unsupported(changed).startswith(f"{(told or [name])[0]} is ")


def test_settings_in_other_forms_are_read_too(models: Path) -> None:
    unread = config_of(models, "modernbert") | {"position_embedding_type": "sans_pos"}  # mmBERT's files have this form
    assert architecture.find_unsupported(architecture.with_usual_names(unread)) == ""
    newer = read(models / "modernbert")
    older = {"rope_parameters": None, "layer_types": None, "global_rope_theta": 160_000.0, "local_rope_theta": 10_000}
    assert [layer.attention[:2] for layer in newer.layers] == [(160_000, 0), (10_000, 10), (10_000, 10), (160_000, 0)]
    assert read(models / "modernbert", **older).layers[1].attention == newer.layers[1].attention
    assert read(models / "modernbert", max_position_embeddings=10**9).num_positions == 8_192
    turned = read(models / "modernbert", **(older | {"global_rope_theta": 80_000, "global_attn_every_n_layers": 2}))
    assert [layer.attention[:2] for layer in turned.layers] == [(80_000, 0), (10_000, 10)] * 2
    for both in ({"norm_eps": 1e-5, "layer_norm_eps": 1e-3}, {"layer_norm_eps": 1e-3, "norm_eps": 1e-5}):
        assert architecture.with_usual_names({"model_type": "modernbert"} | both)["layer_norm_eps"] == 1e-5
    assert read(models / "qwen3, causal", num_key_value_heads=None).num_key_heads == 4


def test_a_config_with_former_names_is_read_as_one_of_now(models: Path) -> None:
    """The repositories of nomic-embed-text have such a file. This one was written from memory."""
    now = json.loads((models / "nomic_bert/config.json").read_text())
    names = architecture.ARCHITECTURES["nomic_bert"].names
    former = {old: now[new] for old, new in names.items() if new in now}
    rest = ("model_type", "architectures", "vocab_size", "type_vocab_size")
    former |= {name: now[name] for name in rest}
    former |= {"activation_function": "swiglu", "rotary_emb_base": 1_000, "rotary_emb_fraction": 1.0, "causal": False}
    former |= {"auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}}
    found = architecture.with_usual_names(former)
    assert architecture.find_unsupported(found) == ""
    one, other = (read_transformer(config, weights.read(models / "nomic_bert")) for config in (found, now))
    assert (one.layers[1].up.weights == other.layers[1].up.weights).all()
    assert (one.layers[0].attention, one.activation) == (other.layers[0].attention, "silu")
    assert one.layers[0].attention[:2] == (1_000, 0)
    assert architecture.with_usual_names(now) == now


def test_a_config_of_the_code_beside_gte_is_read_as_gte(models: Path) -> None:
    new = config_of(models, "new")
    found = architecture.with_usual_names(new)
    assert architecture.find_unsupported(found) == ""
    tensors = {name.replace("gte.", "new."): tensor for name, tensor in weights.read(models / "gte, masked").items()}
    one, other = read_transformer(found, tensors), read(models / "gte, masked")
    assert [layer.attention for layer in one.layers] == [layer.attention for layer in other.layers]
    assert one.layers[0].attention.slowing == pytest.approx(8 ** (2 / 8))
    assert (one.layers[1].up.weights == other.layers[1].up.weights).all()
    with pytest.raises(ModelMismatch, match=r'factor in config\.json is "8": it must be a number from 1'):
        architecture.with_usual_names(new | {"rope_scaling": {"type": "ntk", "factor": "8"}})


ROTARY = "norms before attention and gates and rotary positions"


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "pooling", "blocks"),
    [
        ("modernbert", "cls", ROTARY),
        ("qwen3", "lasttoken", ROTARY),
        ("gemma3_text", "mean", ROTARY),
        ("deberta-v2", "cls", "keys of distances"),
    ],
)
def test_every_engine_serves_a_model_of_other_blocks_or_refuses_it(
    models: Path, own_source: Path, tmp_path: Path, name: str, pooling: str, blocks: str
) -> None:
    """The texts are longer than the window of local layers."""
    for file in ("config.json", weights.FILE):
        shutil.copyfile(models / name / file, own_source / file)
    (own_source / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    edit(own_source / "sentence_bert_config.json", max_seq_length=150)
    folder = prepare_if_needed(tmp_path / "home", str(own_source))
    model = Model.open(folder)
    assert (model.pooling, model.other_blocks, model.activation) == (pooling, blocks, "")
    assert (model.shares_rows, model.max_tokens, model.type_offset) == (True, 150, 0)
    vectors = {}
    for engine, precision in (("openvino", "f32"), ("auto", "bf16"), ("torch", "f32"), ("auto", "int8")):
        encoder = Encoder.open(folder, engine, precision, 2)  # opening compares vectors with vectors in f32
        assert encoder.engine.name == ("torch" if engine == "torch" else "openvino")
        vectors[engine, precision] = encoder.embed(parity.TEXTS, Options(), "")
    cosines = (vectors["torch", "f32"] * vectors["openvino", "f32"]).sum(axis=1)
    assert cosines.min() > 0.9999  # OpenVINO's weights are stored as fp16
    with pytest.raises(BadSetting, match=rf"{blocks}|needs a processor|is not compiled"):
        Encoder.open(folder, "avx512", "bf16", 1)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("bert", {"num_attention_heads": 5}, "hidden_size is 32, no multiple of its 5 heads"),
        ("bert", {"num_attention_heads": 0}, "num_attention_heads in config.json is 0: it must be a number from 1"),
        ("bert", {"num_hidden_layers": 3}, "the weights lack tensor encoder.layer.2."),
        (
            "bert",
            {"num_hidden_layers": 1},
            'have 16 tensors that config.json does not ask for, such as "encoder.layer.1.',
        ),
        ("bert", {"vocab_size": 10**12}, "must be a number from 1 to 1000000000"),
        ("bert", {"vocab_size": True}, "vocab_size in config.json is true"),
        ("bert", {"vocab_size": 9}, "is [100, 32], and config.json says [9, 32]"),
        ("bert", {"layer_norm_eps": 0}, "layer_norm_eps in config.json is 0: it must be between 0 and 1"),
        ("modernbert", {"layer_types": ["full_attention"]}, "names 1 layers, and the model has 4"),
        ("modernbert", {"rope_parameters": None, "local_rope_theta": "a"}, 'local_rope_theta in config.json is "a"'),
        ("modernbert", {"local_attention": 1}, "local_attention in config.json is 1: it must be a number from 2"),
        ("qwen3", {"num_key_value_heads": 3}, "4 query heads are not a multiple of 3 key heads"),
        ("qwen3", {"num_key_value_heads": 4}, "k_proj.weight is [24, 32], and config.json says [48, 32]"),
        ("qwen3", {"head_dim": 9}, "heads have 9 numbers, and rotary positions need pairs"),
        # Half the buckets must be fewer than the distances, because the logarithm of their ratio is a divisor.
        *[
            ("deberta-v2", {"position_buckets": buckets, "max_relative_positions": 9}, f"position_buckets in {words}")
            for buckets, words in (
                (1, "config.json is 1: it must be a number from 2 to 15"),
                (16, "config.json is 16: it must be a number from 2 to 15"),
                ("8", 'config.json is "8": it must be a number from -1'),
            )
        ],
    ],
)
def test_a_config_that_does_not_fit_is_refused(models: Path, name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelMismatch, match=re.escape(words)):
        read(models / name, **changes)


# Weights


def save(folder: Path, **tensors: tuple[str, bytes]) -> None:
    """Write a file of tensors in one dimension: the type, as the format names it, and the bytes of each."""
    header, end = {}, 0
    for name, (kind, data) in tensors.items():
        size = len(data) // SIZES[kind]
        header[name] = {"dtype": kind, "shape": [size], "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    parts = (len(text).to_bytes(8, "little"), text, *(data for _, data in tensors.values()))
    (folder / weights.FILE).write_bytes(b"".join(parts))


SIZES = {"BF16": 2, "F16": 2, "I64": 8, "F64": 8, "F8_E4M3": 1}

NUMBERS = np.array([0.0, -1.5, 3.0e5, 1e-3], np.float32)


def test_numbers_of_16_bits_are_read(tmp_path: Path) -> None:
    upper_half = (NUMBERS.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    halves = np.array([0.0, -1.5, 3.0e4, 1e-3], np.float16)
    save(tmp_path, c=("I64", bytes(8)), a=("BF16", upper_half), b=("F16", halves.tobytes()))
    tensors = weights.read(tmp_path)
    assert set(tensors) == {"a", "b"}
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}
    assert tensors["a"] == pytest.approx(NUMBERS, rel=1e-2)
    assert (tensors["b"] == halves).all()


def test_weights_that_are_no_finite_numbers_or_damaged_are_refused(tiny_source: Path, tmp_path: Path) -> None:
    def refuse(words: str) -> None:
        with pytest.raises(ModelMismatch, match=words):
            weights.read(tmp_path)

    save(tmp_path, a=("F8_E4M3", bytes(8)))
    refuse(r'tensor "a" .* is of type F8_E4M3: use weights of type F32, F16, BF16, F64')
    for number in (np.float32(np.nan), np.float32(-np.inf), np.float64(1e300)):
        save_file({"a": np.array([1.0, number], number.dtype)}, tmp_path / weights.FILE)
        refuse(r'tensor "a" .* has numbers that are not finite')
    data = (tiny_source / weights.FILE).read_bytes()
    for part in (data[:-1], data[:100], b"", b"\xff" * 8 + data[8:], data + b"x"):
        (tmp_path / weights.FILE).write_bytes(part)
        refuse("is damaged")


@pytest.mark.parametrize(
    ("name", "shape", "place"), [("a", [2], [4, 12]), ("a", [-1], [0, 4]), ("a" * (4 << 20), [1], [0, 4])]
)
def test_impossible_places_of_tensors_are_refused(
    tmp_path: Path, name: str, shape: list[int], place: list[int]
) -> None:
    text = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": place}}).encode()
    (tmp_path / weights.FILE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(place[1]))
    with pytest.raises(ModelMismatch, match="is damaged"):
        weights.read(tmp_path)


def test_weights_in_parts_must_be_there_and_beside_their_index(tmp_path: Path) -> None:
    save_file({"a": NUMBERS}, tmp_path / "1.safetensors")
    save_file({"b": NUMBERS}, tmp_path / "2.safetensors")
    index = tmp_path / weights.INDEX
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    assert set(weights.read(tmp_path)) == {"a", "b"}
    (tmp_path / "2.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"lacks the weights' file 2\.safetensors"):
        weights.read(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../../1.safetensors", "b": "/etc/passwd"}}))
    with pytest.raises(ModelNotFound, match=r"lacks the weights' file passwd"):  # beside the index
        weights.read(tmp_path)
    for names in ({"a": 1}, {"a": ["1.safetensors"]}, None):
        index.write_text(json.dumps({"weight_map": names}))
        with pytest.raises(ModelMismatch, match="does not name the weights' files"):
            weights.read(tmp_path)


def test_layer_norms_by_their_old_names_are_read(tiny_source: Path) -> None:
    config, tensors = json.loads((tiny_source / "config.json").read_text()), weights.read(tiny_source)
    olds = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {re.sub("|".join(olds), lambda found: olds[found[0]], name): tensor for name, tensor in tensors.items()}
    assert set(old) != set(tensors)
    assert (read_transformer(config, old).norm.shift == tensors["embeddings.LayerNorm.bias"]).all()
