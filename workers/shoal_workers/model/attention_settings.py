"""The attention of each layer of a model with rotary positions, read from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.contract.excerpt import excerpt
from shoal.errors import ModelMismatch


class Attention(NamedTuple):
    """The attention of a layer.

    Queries and keys are rotated by angles of the base `theta`, divided by `slowing`; with a base of 0 they are not
    rotated. A token attends to tokens at most `window` positions away, or to all tokens if `window` is 0. With
    `is_causal`, it attends to no token that comes after it.
    """

    theta: float = 0.0
    window: int = 0
    is_causal: bool = False
    slowing: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """The keys of config.json for the attention of each layer type, with the values that apply if a key is missing.

    `thetas` has the base of angles, and `windows` the width of the window. If config.json has no `layer_types`, the
    first of every `period` layers has the first type, and all others have the last type. An architecture with several
    types and no `period` needs `layer_types`. With `has_ntk`, config.json may ask for NTK scaling of angles.
    """

    thetas: Mapping[str, tuple[str, float]]
    windows: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    period: tuple[str, int] = ("", 1)
    is_causal: bool = False
    has_ntk: bool = False


def without_ntk(config: dict[str, Any]) -> dict[str, Any]:
    """Return the same settings with linear scaling of angles in place of the NTK scaling that they ask for.

    NTK scaling multiplies the base by a factor and slows all angles (https://kexue.fm/archives/9706). Raises
    ModelMismatch.
    """
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("type") != "ntk" or scaling.keys() != {"type", "factor"}:
        return config
    factor, theta = _number(scaling, "factor", 1), _number(config, "rope_theta", 10_000.0)
    head_size = _number(config, "hidden_size", 0) / _number(config, "num_attention_heads", 0)
    rope = {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / head_size)}
    return config | {"rope_scaling": None, "rope_parameters": rope}


def find_unsupported(config: Mapping[str, Any], settings: AttentionSettings) -> str:
    """Return the name and value of a setting of attention that Shoal does not support; empty if it supports all."""
    types, known = config.get("layer_types"), list(settings.thetas)
    if types is not None and not (isinstance(types, list) and all(kind in known for kind in types)):
        return f"layer_types is {excerpt(types)}"
    if types is None and len(known) > 1 and not settings.period[0]:
        return "layer_types is null"
    if (scaling := config.get("rope_scaling")) is not None:
        return f"rope_scaling is {excerpt(scaling)}"
    parameters = config.get("rope_parameters")
    for kind in known if parameters is not None else ():
        rope = _of_rope(parameters, settings, kind) if isinstance(parameters, dict) else None
        if not isinstance(rope, dict) or not rope.keys() <= {"rope_type", "rope_theta", "factor"}:
            return f"rope_parameters is {excerpt(parameters)}"
        how = rope.get("rope_type", "default")
        if ("factor" in rope) != (how == "linear"):
            return f"rope_parameters is {excerpt(parameters)}"
        if how not in ("default", "linear"):
            return f"rope_type is {excerpt(how)}"
    return ""


def read_attention(config: Mapping[str, Any], settings: AttentionSettings, layer: int, num_layers: int) -> Attention:
    """Return the attention of a layer, from settings that `find_unsupported` accepts. Raises ModelMismatch."""
    types, known = config.get("layer_types"), list(settings.thetas)
    if types is not None and len(types) != num_layers:
        raise ModelMismatch(f"layer_types in config.json names {len(types)} layers, and the model has {num_layers}")
    key, period = settings.period
    by_period = known[-1 if layer % int(_number(config, key, period)) else 0]
    kind = by_period if types is None else types[layer]
    rope = _of_rope(config.get("rope_parameters") or {}, settings, kind) or {}
    theta = _number(rope, "rope_theta", _number(config, *settings.thetas[kind]))
    window = int(_number(config, *settings.windows[kind], at_least=2)) // 2 if kind in settings.windows else 0
    return Attention(theta, window, settings.is_causal, _number(rope, "factor", 1))


def _of_rope(parameters: Mapping[str, Any], settings: AttentionSettings, kind: str) -> Any:
    """Return the settings of angles for a layer type. An architecture with several types has a map for each."""
    return parameters.get(kind) if len(settings.thetas) > 1 else parameters


def _number(config: Mapping[str, Any], key: str, default: float, at_least: int = 1) -> float:
    value = config.get(key, default)
    if type(value) not in (int, float) or not at_least <= value <= 1e9:
        raise ModelMismatch(
            f"{key} in config.json is {excerpt(value)}: it must be a number from {at_least} to 1000000000"
        )
    return float(value)
