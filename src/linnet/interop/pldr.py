"""Import of published PLDR-LLMs (Gokden, arXiv 2502.13502).

A checkpoint is a `.pth` file with `model_state_dict`, or a folder of the author's code for Transformers (`config.json`,
`model.safetensors`) with the same tensor names, in which fixed operators lie in one tensor for all layers. Its
tokenizer is a SentencePiece model in the same folder.

Legend: `L` layers, `H` heads, `K` head width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PositiveFloat, PositiveInt
from torch import Tensor

from linnet.core.arrays import read_tensors
from linnet.core.errors import UserError
from linnet.core.files import read_json, sha256_of
from linnet.core.spec import Spec
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.interop.tensor_names import PLDR, check_one_precision, read_pth
from linnet.layers.feed_forwards.glu import GatedSpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.files import choose_operators
from linnet.layers.mixers.plga.operator import NORM_EPS
from linnet.model.decoder import Decoder, decoder_with_weights
from linnet.model.folder import read_description
from linnet.model.initialize import without_calibration_file
from linnet.model.spec import ModelSpec
from linnet.model.store import check_new_folder, check_tensors, write_model

LEARNED, FIXED = "pldr-v51-110m-1", "pldr-v51g-106m-1"
"""Presets from which other published models differ only by sizes and operators."""
STATE = "model_state_dict"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
OPERATORS, OPERATORS_SET = "decoder.past_G_values", "decoder.past_G_values_status"
"""`[L, 3, 1, H, K, K]`: A, A_LM and G of each layer; and `[L]`, whether they are set."""
G = 2


@dataclass(frozen=True)
class Published:
    """A published model. source: the file that determines its shapes; operators: `[H, K, K]` of each fixed one."""

    model: ModelSpec
    weights: Path
    source: str
    named: dict[str, Tensor]
    operators: list[Tensor] | None


def import_pldr(
    source: str | Path,
    spec: str | Path | None,
    tokenizer: str | Path | None,
    out: str | Path,
    command: str | None = None,
    operator: str | None = None,
) -> Decoder:
    """Make the model folder `out` from a `.pth` file, a folder with one, or a folder for Transformers.

    spec: description of a `.pth` file: a preset's name or a file. operator: the fixed operators of a `.pth` file that
    does not contain them, `identity` or a file. `UserError` names the file and the tensor that is missing, unexpected
    or of another shape. The tensors keep their precision.
    """
    check_new_folder(out)
    folder = Path(source)
    read = _from_transformers if (folder / CONFIG).is_file() else _from_pth
    if tokenizer is not None:
        pieces = Path(tokenizer)
    elif folder.is_dir():
        pieces = _only_file(folder, ".model", "a SentencePiece model")
    else:
        accepted = "the SentencePiece .model that the checkpoint was trained with"
        raise UserError("missing", field="tokenizer", accepted=accepted)
    published = read(folder, spec, operator)
    model, weights = published.model, published.weights
    converted = tokenizer_from_sentencepiece(pieces)
    if converted.vocab_size > model.vocab_size:
        accepted = f"expected at most the vocab_size of {published.source}, {model.vocab_size}"
        raise UserError(f"{pieces}: {converted.vocab_size} tokens: {accepted}")
    check_tensors(published.named, PLDR.shapes(model), weights, published.source)
    check_one_precision(published.named, weights)
    tensors = PLDR.from_published(published.named, model)
    dtype = next(iter(tensors.values())).dtype
    for layer, operator_HKK in enumerate(published.operators or ()):
        tensors[f"blocks.0.layers.{layer}.mixer.operator.g"] = operator_HKK.to(dtype).clone()
    decoder = decoder_with_weights(without_calibration_file(model), tensors)
    made = {"imported_from": str(weights), "sha256": sha256_of(weights), "tokenizer": str(pieces)}
    chosen = {} if operator is None else {"operator": operator}
    write_model(out, decoder, converted, {**made, **chosen, "command": command})
    return decoder


def _from_pth(source: Path, spec: str | Path | None, operator: str | None) -> Published:
    if spec is None:
        accepted = f"what {source} is a model of: a preset, or a description's file"
        raise UserError("missing", field="spec", accepted=accepted)
    checkpoint, model = _only_file(source, ".pth", "a checkpoint"), ModelSpec.load(spec)
    mixer = model.blocks[0].mixer
    if not isinstance(mixer, PlgaSpec) or not _same_but_sizes(model, mixer):
        problem = f"not the architecture of a published PLDR-LLM, as presets {LEARNED} and {FIXED}"
        raise UserError(problem, field="spec", value=spec)
    operators = _fixed_operators(model, mixer, spec, operator)
    return Published(model, checkpoint, str(spec), read_pth(checkpoint, STATE), operators)


def _same_but_sizes(model: ModelSpec, mixer: PlgaSpec) -> bool:
    """Return True if a description equals a preset up to sizes and operators."""
    preset = ModelSpec.load(LEARNED if mixer.operator == "learned" else FIXED).model_dump()
    plain = model.model_dump()
    if len(plain["blocks"]) != 1 or not isinstance(model.blocks[0].feed_forward, GatedSpec):
        return False
    for name in ("name", "vocab_size", "d_model", "context_length", "initialization"):
        preset[name] = plain[name]
    ours, theirs = plain["blocks"][0], preset["blocks"][0]
    theirs["repeat"], theirs["feed_forward"]["hidden"] = ours["repeat"], ours["feed_forward"]["hidden"]
    for name in ("heads", "metric_hidden", "residual_units", "gated_units", "start"):
        theirs["mixer"][name] = ours["mixer"][name]
    return plain == preset


def _fixed_operators(model: ModelSpec, mixer: PlgaSpec, spec: str | Path, operator: str | None) -> list[Tensor] | None:
    """Return the fixed operators, which the published `.pth` files do not contain; None for learned ones."""
    if mixer.operator == "learned":
        if operator is not None:
            problem = f"applies to fixed operators; those of {spec} are learned"
            raise UserError(problem, field="operator", value=operator)
        return None
    source = operator or model.initialization.calibration
    if operator == "random" or (operator is None and source != "identity"):
        raise UserError(
            "missing" if operator is None else "draws others",
            field="operator",
            value=operator,
            accepted=f"those that {spec} was trained with, which its checkpoint does not contain: identity, or a file"
            " (.safetensors, .npz)",
        )
    head_dim = model.d_model // mixer.heads
    return choose_operators(source, [(mixer.heads, head_dim, head_dim)] * model.layers, "`operator`")


def _only_file(source: Path, suffix: str, what: str) -> Path:
    """Return the file itself, or the only file with the suffix in a folder."""
    if not source.is_dir():
        return source
    files = sorted(path for path in source.iterdir() if path.suffix == suffix)
    if len(files) != 1:
        names = f"{len(files)} of them ({', '.join(path.name for path in files)})" if files else "none"
        raise UserError(f"{source}: expected one {suffix} file, {what}, found {names}")
    return files[0]


def _norm_eps(value: float) -> float:
    if value != NORM_EPS:
        raise ValueError(f"must be {NORM_EPS:g}")
    return value


class Rotary(Spec):
    """Rotary positions, `rope_parameters` in newer configurations."""

    rope_type: Literal["default"] = "default"
    rope_theta: PositiveFloat | None = None


class PublishedConfig(Spec):
    """The fields of `config.json` that describe the model, with the defaults of the author's code."""

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
        """Return the model description."""
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


def _from_transformers(source: Path, spec: str | Path | None, operator: str | None) -> Published:
    for field, value, holder in (("spec", spec, CONFIG), ("operator", operator, WEIGHTS)):
        if value is not None:
            problem = f"{source} has a {CONFIG}, so its {holder} determines it; leave it out"
            raise UserError(problem, field=field, value=value)
    path, weights = source / CONFIG, source / WEIGHTS
    plain: Any = read_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    known = {name: value for name, value in plain.items() if name in PublishedConfig.model_fields}
    config = PublishedConfig.parse(known, str(path))
    heads, head_dim = config.num_attention_heads, config.head_dim
    if config.hidden_size != heads * head_dim:
        accepted = f"expected num_attention_heads x head_dim, {heads * head_dim}"
        raise UserError(f"{path}: hidden_size: {config.hidden_size}: {accepted}")
    model, named, operators = config.model(source.resolve().name), read_tensors(weights), None
    if config.custom_G_type is not None:
        named.pop(OPERATORS_SET, None)
        shape = [model.layers, 3, 1, heads, head_dim, head_dim]
        values = named.pop(OPERATORS, None)
        if values is None:
            raise UserError(f"{weights}: tensor {OPERATORS} is missing; {CONFIG} requires it, of shape {shape}")
        origin = f"{weights}: tensor {OPERATORS}"
        if list(values.shape) != shape or not values.is_floating_point():
            actual = f"shape {list(values.shape)} of {str(values.dtype).removeprefix('torch.')}"
            raise UserError(f"{origin}: {actual}: expected {shape} of floats")
        if not bool(values.isfinite().all()):
            raise UserError(f"{origin}: contains NaN or infinity; expected finite numbers")
        operators = [layer[G, 0] for layer in values]
    return Published(model, weights, str(path), named, operators)
