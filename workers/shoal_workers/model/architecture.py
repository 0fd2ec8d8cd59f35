"""The encoders that Shoal computes itself, as data, by the `model_type` of config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.contract.excerpt import excerpt
from shoal_workers.model import attention_settings
from shoal_workers.model.attention_settings import AttentionSettings

#: The class in config.json of late-interaction models that were saved by Stanford's code, whatever their architecture.
LATE_CLASS = "HF_ColBERT"

#: Largest value of any size of a model.
MAX_SIZE = 10**9

#: The names of functions in config.json, and the name of each in `Transformer`.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

#: Settings that may change what a model computes, with the values that change nothing. Any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_causal": (False, None),
    "add_cross_attention": (False, None),
    "quantization_config": (None,),
    "auto_map": (None, {}),
}


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The names of the tensors, without `.weight` and `.bias`. The names of a layer's tensors begin with `layer`.

    `qkv` has three names, for query, key and value, or one name if one tensor has all three. `up` has one name, or one
    for each half. An empty name means that the architecture has no such tensor. `attention_end` and `output_end` are
    norms of the outputs of attention and of the network, before these are added to the tokens. `distances` has a vector
    for each distance of two tokens, `distance_norm` is the norm of these vectors, and `distance_key` and
    `distance_query` are the linear layers that make keys and queries of such vectors.
    """

    layer: str
    qkv: tuple[str, ...]
    attention_out: str
    attention_norm: str
    up: tuple[str, ...]
    down: str
    output_norm: str
    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    types: str = "embeddings.token_type_embeddings"
    norm: str = "embeddings.LayerNorm"
    final_norm: str = ""
    query_norm: str = ""
    key_norm: str = ""
    attention_end: str = ""
    output_end: str = ""
    relative_bias: str = ""
    distances: str = ""
    distance_norm: str = ""
    distance_key: str = ""
    distance_query: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The two linear layers that make scores from a token vector, and the function and the norm between them.

    Without `dense`, `out` alone makes the scores, and has no bias. `pooling` is the key of config.json that says
    whether the scores belong to the first token's vector or to the mean. If `activation` is empty, config.json names
    the function. In a head for words, the weights of `out` may be the word embeddings.
    """

    dense: str
    activation: str
    out: str
    norm: str = ""
    pooling: str = ""


@dataclass(frozen=True, slots=True)
class Architecture:
    """An encoder.

    The names of its classes in transformers begin with `class_prefix`. The names of its tensors begin with
    `tensor_prefix` in a model with a head. The first `pad_rows` rows of the position embeddings are unused; None stands
    for one more than the id of the padding token. Tensors whose names begin with one of `unused` belong to heads that
    were trained with the model and are not needed. A cross-encoder needs a `head`. `words_head` makes a number for each
    word of the vocabulary.

    BERT's norms come after attention and after the network; with `norms_first`, they come before. With `is_gated`, the
    function is applied to the first half of the output of `up`, and the result is multiplied by the second half. With
    `is_rms`, norms are RMS norms. Without `has_biases`, only the last linear layer of a head has a bias; without
    `has_up_bias`, the linear layer `up` has none. Without `has_shifts`, norms have no shift; with `adds_one`, one is
    added to the scale of norms. Without `has_first_norm`, the first layer has no norm before attention. With
    `has_gate_last`, the tensor of `up` has its halves in the other order. With `scales_words`, word embeddings are
    multiplied by the square root of the width.

    `activation` is the usual activation function of the layers. With `attention`, positions are rotary. `neutral` has
    settings of this architecture with the values that Shoal supports. `names` maps keys of config.json to BERT's keys,
    under which all settings are read; `defaults` has settings that config.json lacks. With `has_key_heads`, config.json
    has the number of key heads and the size of a head. Attention scores are divided by the square root of the setting
    `score_divisor`, or else of the size of a head. If a model comes with Python code, the code's names in config.json
    must begin with `code`: that code computes the same as Shoal. A model with other code is not supported.
    """

    class_prefix: str
    tensor_prefix: str
    tensors: TensorNames
    head: Head | None
    pad_rows: int | None = 0
    unused: tuple[str, ...] = ("pooler.", "cls.", "lm_head.", "classifier.")
    norms_first: bool = False
    is_gated: bool = False
    is_rms: bool = False
    has_biases: bool = True
    has_up_bias: bool = True
    has_shifts: bool = True
    adds_one: bool = False
    has_first_norm: bool = True
    has_gate_last: bool = False
    scales_words: bool = False
    activation: str = "gelu"
    attention: AttentionSettings | None = None
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_key_heads: bool = False
    score_divisor: str = ""
    code: str = ""
    words_head: Head | None = None


_BERT = TensorNames(
    layer="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_out="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
    output_norm="output.LayerNorm",
)

_DISTILBERT = TensorNames(
    layer="transformer.layer.{}.",
    qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    attention_out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up=("ffn.lin1",),
    down="ffn.lin2",
    output_norm="output_layer_norm",
    types="",
)

_MPNET = replace(
    _BERT,
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    attention_out="attention.attn.o",
    attention_norm="attention.LayerNorm",
    types="",
    relative_bias="encoder.relative_attention_bias",
)

_MODERNBERT = TensorNames(
    layer="layers.{}.",
    qkv=("attn.Wqkv",),
    attention_out="attn.Wo",
    attention_norm="attn_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    output_norm="mlp_norm",
    words="embeddings.tok_embeddings",
    positions="",
    types="",
    norm="embeddings.norm",
    final_norm="final_norm",
)

_NOMIC_BERT = TensorNames(
    layer="encoder.layers.{}.",
    qkv=("attn.Wqkv",),
    attention_out="attn.out_proj",
    attention_norm="norm1",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    output_norm="norm2",
    positions="",
    norm="emb_ln",
)

_GTE = TensorNames(
    layer="encoder.layer.{}.",
    qkv=("attention.qkv_proj",),
    attention_out="attention.o_proj",
    attention_norm="attn_ln",
    up=("mlp.up_gate_proj",),
    down="mlp.down_proj",
    output_norm="mlp_ln",
    positions="",
)

_QWEN3 = TensorNames(
    layer="layers.{}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_out="self_attn.o_proj",
    attention_norm="input_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
    output_norm="post_attention_layernorm",
    words="embed_tokens",
    positions="",
    types="",
    norm="",
    final_norm="norm",
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
)

_GTE_ARCHITECTURE = Architecture(
    "Gte",
    "gte.",
    _GTE,
    Head("gte.pooler.dense", "tanh", "classifier"),
    is_gated=True,
    has_up_bias=False,
    has_gate_last=True,
    attention=AttentionSettings({"full_attention": ("rope_theta", 160_000.0)}),
    neutral={"head_dim": (None,)},
)

_GEMMA = replace(
    _QWEN3,
    attention_end="post_attention_layernorm",
    output_norm="pre_feedforward_layernorm",
    output_end="post_feedforward_layernorm",
)

_DEBERTA = replace(
    _BERT,
    qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
    positions="",
    distances="encoder.rel_embeddings",
    distance_norm="encoder.LayerNorm",
    distance_key="attention.self.pos_key_proj",
    distance_query="attention.self.pos_query_proj",
)

_ROBERTA_HEAD = Head("classifier.dense", "tanh", "classifier.out_proj")

_BERT_WORDS = Head("cls.predictions.transform.dense", "", "cls.predictions", norm="cls.predictions.transform.LayerNorm")
_ROBERTA_WORDS = Head("lm_head.dense", "gelu", "lm_head", norm="lm_head.layer_norm")

_ROBERTA = Architecture("Roberta", "roberta.", _BERT, _ROBERTA_HEAD, pad_rows=None, words_head=_ROBERTA_WORDS)

#: The architectures by the `model_type` of config.json.
ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture(
        "Bert", "bert.", _BERT, Head("bert.pooler.dense", "tanh", "classifier"), words_head=_BERT_WORDS
    ),
    "distilbert": Architecture(
        "DistilBert",
        "distilbert.",
        _DISTILBERT,
        Head("pre_classifier", "relu", "classifier"),
        unused=("vocab_", "pre_classifier.", "classifier."),
        names={
            "dim": "hidden_size",
            "n_layers": "num_hidden_layers",
            "n_heads": "num_attention_heads",
            "hidden_dim": "intermediate_size",
            "activation": "hidden_act",
        },
        defaults={"layer_norm_eps": 1e-12},
        words_head=Head("vocab_transform", "", "vocab_projector", norm="vocab_layer_norm"),
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": replace(_ROBERTA, class_prefix="XLMRoberta"),
    "camembert": replace(_ROBERTA, class_prefix="Camembert"),
    "mpnet": replace(_ROBERTA, class_prefix="MPNet", tensor_prefix="mpnet.", tensors=_MPNET, pad_rows=2),
    "modernbert": Architecture(
        "ModernBert",
        "model.",
        _MODERNBERT,
        Head("head.dense", "gelu", "classifier", norm="head.norm", pooling="classifier_pooling"),
        unused=("head.", "decoder.", "classifier."),
        words_head=Head("head.dense", "gelu", "decoder", norm="head.norm"),
        norms_first=True,
        is_gated=True,
        has_biases=False,
        has_shifts=False,
        has_first_norm=False,
        attention=AttentionSettings(
            thetas={
                "full_attention": ("global_rope_theta", 160_000.0),
                "sliding_attention": ("local_rope_theta", 10_000.0),
            },
            windows={"sliding_attention": ("local_attention", 128)},
            period=("global_attn_every_n_layers", 3),
        ),
        names={"hidden_activation": "hidden_act", "norm_eps": "layer_norm_eps"},
        neutral={
            **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), (False, None)),
            "position_embedding_type": ("absolute", "sans_pos", None),  # ModernBERT's code ignores this setting
            "classifier_activation": ("gelu", None),
            "classifier_pooling": ("cls", "mean", None),
        },
    ),
    "nomic_bert": Architecture(
        "NomicBert",
        "nomic_bert.",
        _NOMIC_BERT,
        None,
        is_gated=True,
        has_biases=False,
        activation="silu",
        attention=AttentionSettings({"full_attention": ("rope_theta", 1_000.0)}),
        neutral={
            **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False, None)),
            **dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "causal"), (False, None)),
            **dict.fromkeys(("rotary_emb_interleaved", "rotary_emb_scale_base"), (False, None)),
            "rotary_emb_fraction": (1, None),
            "rotary_scaling_factor": (None,),
        },
        names={
            "n_embd": "hidden_size",
            "n_layer": "num_hidden_layers",
            "n_head": "num_attention_heads",
            "n_inner": "intermediate_size",
            "n_positions": "max_position_embeddings",
            "activation_function": "hidden_act",
            "layer_norm_epsilon": "layer_norm_eps",
            "rotary_emb_base": "rope_theta",
        },
        code="nomic-ai/nomic-bert-2048--",
    ),
    "deberta-v2": Architecture(
        "DebertaV2",
        "deberta.",
        _DEBERTA,
        Head("pooler.dense", "gelu", "classifier"),
        unused=(
            *("pooler.", "cls.", "lm_predictions.", "mask_predictions.", "classifier."),
            "embeddings.position_embeddings.",
        ),
        neutral={
            "relative_attention": (True,),
            "position_biased_input": (False,),
            "pos_att_type": (["p2c", "c2p"], ["c2p", "p2c"], "p2c|c2p", "c2p|p2c"),
            "norm_rel_ebd": ("layer_norm",),
            "conv_kernel_size": (0, None),
            "pooler_hidden_act": ("gelu", None),
            "embedding_size": (None,),
        },
    ),
    "gte": _GTE_ARCHITECTURE,
    "new": replace(
        _GTE_ARCHITECTURE,
        class_prefix="New",
        tensor_prefix="new.",
        head=Head("new.pooler.dense", "tanh", "classifier"),
        attention=AttentionSettings({"full_attention": ("rope_theta", 10_000.0)}, has_ntk=True),
        neutral={
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm", None),
            "logn_attention_scale": (False, None),
            "pack_qkv": (True, None),
        },
        code="Alibaba-NLP/new-impl--",
    ),
    "qwen3": Architecture(
        "Qwen3",
        "model.",
        _QWEN3,
        Head("", "", "score"),
        unused=("lm_head.", "score."),
        norms_first=True,
        is_gated=True,
        is_rms=True,
        has_biases=False,
        activation="silu",
        attention=AttentionSettings({"full_attention": ("rope_theta", 10_000.0)}, is_causal=True),
        names={"rms_norm_eps": "layer_norm_eps"},
        has_key_heads=True,
        neutral={
            **dict.fromkeys(("attention_bias", "use_sliding_window"), (False, None)),
            "is_causal": (True, None),
        },
    ),
    "gemma3_text": Architecture(
        "Gemma3",
        "model.",
        _GEMMA,
        None,
        unused=("lm_head.",),
        norms_first=True,
        is_gated=True,
        is_rms=True,
        has_biases=False,
        adds_one=True,
        scales_words=True,
        activation="gelu_tanh",
        attention=AttentionSettings(
            thetas={
                "full_attention": ("rope_theta", 1_000_000.0),
                "sliding_attention": ("rope_local_base_freq", 10_000.0),
            },
            windows={"sliding_attention": ("sliding_window", 4_096)},
        ),
        names={"hidden_activation": "hidden_act", "rms_norm_eps": "layer_norm_eps"},
        has_key_heads=True,
        score_divisor="query_pre_attn_scalar",
        neutral={
            "use_bidirectional_attention": (True,),
            "attention_bias": (False, None),
            "attn_logit_softcapping": (None,),
        },
    ),
}


def with_usual_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of config.json, with settings under the names that BERT has. Raises ModelMismatch."""
    if (architecture := _architecture_of(config)) is None:
        return dict(config)
    own = {new: config[name] for name, new in architecture.names.items() if name in config}
    found = {name: value for name, value in config.items() if name not in architecture.names}
    found = {**architecture.defaults, **found, **own}
    if architecture.code:
        code = found.get("auto_map")
        if isinstance(code, dict) and all(str(name).startswith(architecture.code) for name in code.values()):
            del found["auto_map"]
        if found.get("hidden_act") == "swiglu":
            found["hidden_act"] = "silu"
    has_ntk = architecture.attention and architecture.attention.has_ntk
    return attention_settings.without_ntk(found) if has_ntk else found


def _architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    kind = config.get("model_type")
    return ARCHITECTURES.get(kind) if isinstance(kind, str) else None


def find_unsupported(config: Mapping[str, Any]) -> str:
    """Return the name and value of a setting that Shoal does not support; empty if it supports all."""
    if (architecture := _architecture_of(config)) is None:
        return f"model_type is {excerpt(config.get('model_type'))}"
    classes = config.get("architectures") or [architecture.class_prefix]
    is_scored = isinstance(classes, list) and str(classes[0]).endswith("ForSequenceClassification")
    is_known = isinstance(classes, list) and str(classes[0]).startswith((architecture.class_prefix, LATE_CLASS))
    if not is_known or (is_scored and not architecture.head):
        return f"architectures is {excerpt(classes)}"
    for name, neutral in ({**_NEUTRAL, **architecture.neutral}).items():
        if config.get(name) not in neutral:
            return f"{name} is {excerpt(config.get(name))}"
    if is_scored and not architecture.tensors.positions and config.get("type_vocab_size", 1) not in (0, 1):
        return f"type_vocab_size is {excerpt(config['type_vocab_size'])}"  # all tokens get the vector of one type
    activation = config.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        return f"hidden_act is {excerpt(activation)}"
    return attention_settings.find_unsupported(config, architecture.attention) if architecture.attention else ""
