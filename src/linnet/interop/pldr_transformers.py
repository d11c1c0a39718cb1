"""A published PLDR-LLM as Transformers' code of the same author keeps it: `config.json` and `model.safetensors`.

The tensors have the names of the `.pth` files. Operators that are not learned lie beside them, in one tensor of all
layers. Legend: `L` layers, `H` heads, `K` head width.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.arrays import read_tensors
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.core.spec import Spec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.operator import NORM_EPS
from linnet.model.spec import ModelSpec
from linnet.model.store import read_description

LEARNED, FIXED = "pldr-v51-110m-1", "pldr-v51g-106m-1"
"""The presets from which the others differ by sizes and operators."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
OPERATORS, READ = "decoder.past_G_values", "decoder.past_G_values_status"
"""`[L, 3, 1, H, K, K]`: A, A_LM and G of each layer; and `[L]`, whether they are set."""
G = 2


def _norm_eps(value: float) -> float:
    if value != NORM_EPS:
        raise ValueError(f"must be {NORM_EPS:g}")
    return value


class Rotary(Spec):
    """Positions as Transformers describes them, `rope_parameters` in its newer configurations."""

    rope_type: Literal["default"] = "default"
    rope_theta: PositiveFloat | None = None


class PublishedConfig(Spec):
    """What of `config.json` describes the model; where it says nothing, that code's own values hold."""

    model_type: Literal["pldrllm"]
    vocab_size: PositiveInt = 32_000
    hidden_size: PositiveInt = 896
    intermediate_size: PositiveInt = 2389
    num_hidden_layers: PositiveInt = 5
    num_attention_heads: PositiveInt = 14
    head_dim: PositiveInt = 64
    max_position_embeddings: PositiveInt = 1024
    num_reslayerA: PositiveInt = 8
    num_denseA: PositiveInt = 2
    A_dff: PositiveInt = 170
    hidden_act: Literal["silu"] = "silu"
    layer_norm_eps: Annotated[float, AfterValidator(_norm_eps)] = NORM_EPS
    rope_theta: PositiveFloat = 10_000.0
    rope_scaling: Rotary | None = None
    rope_parameters: Rotary | None = None
    reference_rope: bool = True
    attention_bias: Literal[True] = True
    glu_bias: Literal[True] = True
    final_bias: Literal[True] = True
    tie_word_embeddings: Literal[False] = False
    custom_G_type: Literal["identity", "random", "external"] | None = None

    def model(self, name: str) -> ModelSpec:
        """The description in our words."""
        learned = self.custom_G_type is None
        plain = read_description(LEARNED if learned else FIXED)
        plain |= {"name": name, "vocab_size": self.vocab_size, "d_model": self.hidden_size}
        plain |= {"context_length": self.max_position_embeddings}
        (block,) = plain["blocks"]
        block["repeat"], block["feed_forward"]["hidden"] = self.num_hidden_layers, self.intermediate_size
        pairing = "adjacent" if self.reference_rope else "halves"
        newer = self.rope_parameters and self.rope_parameters.rope_theta
        rotary = {"base": newer or self.rope_theta, "pairing": pairing}
        block["mixer"] |= {"heads": self.num_attention_heads, "rotary": rotary}
        if learned:
            units = {"residual_units": self.num_reslayerA, "gated_units": self.num_denseA}
            block["mixer"] |= {"metric_hidden": self.A_dff, **units}
        return ModelSpec.parse(plain, name)


def is_transformers_folder(source: Path) -> bool:
    """Whether it has a `config.json`."""
    return (source / CONFIG).is_file()


def read_config(folder: Path) -> ModelSpec:
    """The description of the model in `folder`; `UserError` names the field that no published PLDR-LLM has."""
    path = folder / CONFIG
    plain: Any = read_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    known = {name: value for name, value in plain.items() if name in PublishedConfig.model_fields}
    config = PublishedConfig.parse(known, str(path))
    if config.hidden_size != config.num_attention_heads * config.head_dim:
        raise UserError(
            f"{path}: hidden_size: {config.hidden_size}: expected num_attention_heads x head_dim,"
            f" {config.num_attention_heads * config.head_dim}"
        )
    return config.model(folder.resolve().name)


def read_weights(folder: Path, model: ModelSpec, mixer: PlgaSpec) -> tuple[dict[str, Tensor], list[Tensor] | None]:
    """The tensors by their published names, and the operators `[H, K, K]` of each layer where they are not learned."""
    named = read_tensors(folder / WEIGHTS)
    if mixer.operator == "learned":
        return named, None
    named.pop(READ, None)
    head_dim = model.d_model // mixer.heads
    shape = [model.layers, 3, 1, mixer.heads, head_dim, head_dim]
    return named, _operators(named.pop(OPERATORS, None), shape, folder / WEIGHTS)


def _operators(values: Tensor | None, shape: list[int], path: Path) -> list[Tensor]:
    if values is None:
        raise UserError(f"{path}: tensor {OPERATORS} is missing; {CONFIG} has it, of shape {shape}")
    if list(values.shape) != shape or not values.is_floating_point():
        kind = str(values.dtype).removeprefix("torch.")
        raise UserError(f"{path}: tensor {OPERATORS}: shape {list(values.shape)} of {kind}: expected {shape} of floats")
    if not bool(values.isfinite().all()):
        raise UserError(f"{path}: tensor {OPERATORS}: holds NaN or infinity; expected finite numbers")
    return [layer[G, 0] for layer in values]
