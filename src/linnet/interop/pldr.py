"""Published PLDR-LLMs (Gokden, arXiv 2502.13502) as model folders.

A checkpoint is a `.pth` file with `model_state_dict`, or a folder as Transformers keeps models (`pldr_transformers`);
its tokenizer a SentencePiece model beside it.
"""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.tokenizer import Tokenizer
from linnet.interop.pldr_transformers import (
    CONFIG,
    FIXED,
    LEARNED,
    WEIGHTS,
    is_transformers_folder,
    read_config,
    read_weights,
)
from linnet.interop.pth import check_one_precision, read_pth
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.interop.tensor_names import PLDR, from_published, published_shapes
from linnet.layers.feed_forwards.glu import GatedSpec
from linnet.layers.mixers.plga import PlgaSpec
from linnet.layers.mixers.plga.files import choose_operators
from linnet.model.decoder import Decoder
from linnet.model.skip_init import decoder_with_weights, without_calibration_file
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.model.store import check_new_folder, check_tensors, write_model

STATE = "model_state_dict"


@dataclass(frozen=True)
class Published:
    """A model as it was published. said_by: what its shapes are held to; operators: `[H, K, K]` of each fixed one."""

    model: ModelSpec
    mixer: PlgaSpec
    weights: Path
    said_by: str
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
    """Make the model folder `out` from a `.pth` file, a folder with one, or a folder as Transformers keeps models.

    spec: what a `.pth` file is, a preset's name or the file of a description. operator: the fixed operators of a `.pth`
    file that does not hold them, `identity` or a file. `UserError` names the file and the tensor that is missing, extra
    or misshapen. The tensors keep their precision.
    """
    check_new_folder(out)
    folder = Path(source)
    read = _from_transformers if is_transformers_folder(folder) else _from_pth
    pieces = Path(tokenizer) if tokenizer is not None else _beside(folder)
    published = read(folder, spec, operator)
    speech = _tokenizer(pieces, published)
    decoder = _decoder(published)
    made = {"imported_from": str(published.weights), "sha256": sha256_of(published.weights), "tokenizer": str(pieces)}
    given = {} if operator is None else {"operator": operator}
    write_model(out, decoder, speech, {**made, **given, "command": command})
    return decoder


def _from_pth(source: Path, spec: str | Path | None, operator: str | None) -> Published:
    if spec is None:
        raise UserError(
            "missing", field="spec", accepted=f"what {source} is a model of: a preset, or a description's file"
        )
    checkpoint, model = _one(source, ".pth", "a checkpoint"), ModelSpec.load(spec)
    mixer = _published_mixer(model, spec)
    operators = _given_operators(model, mixer, spec, operator)
    return Published(model, mixer, checkpoint, str(spec), read_pth(checkpoint, STATE), operators)


def _from_transformers(source: Path, spec: str | Path | None, operator: str | None) -> Published:
    for field, value, holder in (("spec", spec, CONFIG), ("operator", operator, WEIGHTS)):
        if value is not None:
            problem = f"{source} has a {CONFIG}, so its {holder} decides that; leave it out"
            raise UserError(problem, field=field, value=value)
    model = read_config(source)
    (block,) = model.blocks
    assert isinstance(block.mixer, PlgaSpec)
    named, operators = read_weights(source, model, block.mixer)
    return Published(model, block.mixer, source / WEIGHTS, str(source / CONFIG), named, operators)


def _published_mixer(model: ModelSpec, spec: str | Path) -> PlgaSpec:
    """The mixer of a description that a published checkpoint can be of: the presets' but for sizes and operators."""
    block, mixer = model.blocks[0], model.blocks[0].mixer
    if isinstance(mixer, PlgaSpec) and _same_but_sizes(model, block, mixer):
        return mixer
    raise UserError(
        f"not the architecture of a published PLDR-LLM, as presets {LEARNED} and {FIXED}", field="spec", value=spec
    )


def _same_but_sizes(model: ModelSpec, block: BlockSpec, mixer: PlgaSpec) -> bool:
    preset = ModelSpec.load(LEARNED if mixer.operator == "learned" else FIXED).model_dump()
    plain = model.model_dump()
    if len(plain["blocks"]) != 1 or not isinstance(block.feed_forward, GatedSpec):
        return False
    for name in ("name", "vocab_size", "d_model", "context_length", "initialization"):
        preset[name] = plain[name]
    ours, theirs = plain["blocks"][0], preset["blocks"][0]
    theirs["repeat"], theirs["feed_forward"]["hidden"] = ours["repeat"], ours["feed_forward"]["hidden"]
    for name in ("heads", "metric_hidden", "residual_units", "gated_units", "start"):
        theirs["mixer"][name] = ours["mixer"][name]
    return plain == preset


def _given_operators(model: ModelSpec, mixer: PlgaSpec, spec: str | Path, operator: str | None) -> list[Tensor] | None:
    """The published files of models with fixed operators do not hold these."""
    if mixer.operator == "learned":
        if operator is not None:
            raise UserError(f"goes with fixed operators; those of {spec} are learned", field="operator", value=operator)
        return None
    source = operator or model.initialization.calibration
    if operator == "random" or (operator is None and source != "identity"):
        raise UserError(
            "missing" if operator is None else "draws others",
            field="operator",
            value=operator,
            accepted=f"those that {spec} was trained with, which its checkpoint does not hold: identity, or a file"
            " (.safetensors, .npz)",
        )
    head_dim = model.d_model // mixer.heads
    return choose_operators(source, [(mixer.heads, head_dim, head_dim)] * model.layers, "`operator`")


def _decoder(published: Published) -> Decoder:
    model = published.model
    check_tensors(published.named, published_shapes(model, PLDR), published.weights, published.said_by)
    check_one_precision(published.named, published.weights)
    tensors = from_published(published.named, model, PLDR)
    precision = next(iter(tensors.values())).dtype
    for layer, operator_HKK in enumerate(published.operators or ()):
        tensors[f"blocks.0.layers.{layer}.mixer.operator.g"] = operator_HKK.to(precision).clone()
    return decoder_with_weights(without_calibration_file(model), tensors)


def _tokenizer(pieces: Path, published: Published) -> Tokenizer:
    tokenizer, most = tokenizer_from_sentencepiece(pieces), published.model.vocab_size
    if tokenizer.vocab_size > most:
        said = f"{tokenizer.vocab_size} tokens: expected at most the vocab_size of {published.said_by}, {most}"
        raise UserError(f"{pieces}: {said}")
    return tokenizer


def _beside(source: Path) -> Path:
    if not source.is_dir():
        raise UserError(
            "missing", field="tokenizer", accepted="the SentencePiece .model that the checkpoint was trained with"
        )
    return _one(source, ".model", "a SentencePiece model")


def _one(source: Path, suffix: str, what: str) -> Path:
    """The file itself, or the only one with the suffix in a folder."""
    if not source.is_dir():
        return source
    found = sorted(path for path in source.iterdir() if path.suffix == suffix)
    if len(found) != 1:
        names = f"{len(found)} of them ({', '.join(path.name for path in found)})" if found else "none"
        raise UserError(f"{source}: expected one {suffix} file, {what}, found {names}")
    return found[0]
