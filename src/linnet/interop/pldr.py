"""Published PLDR-LLM checkpoints (Gokden, arXiv 2502.13502) as model folders.

A checkpoint is a `.pth` file with `model_state_dict`; its tokenizer a SentencePiece model beside it.
"""

from pathlib import Path

import torch

from linnet.data.tokenizer import Tokenizer
from linnet.errors import UserError
from linnet.files import sha256_of
from linnet.inference.model_folder import check_new_folder, write_model_folder
from linnet.interop.names import from_pldr
from linnet.interop.pth import check_one_precision, read_pth
from linnet.interop.sentencepiece import tokenizer_from_sentencepiece
from linnet.mixers.plga import PlgaSpec
from linnet.model.decoder import Decoder
from linnet.model.folder import check_tensors
from linnet.model.spec import BlockSpec, ModelSpec
from linnet.nn.feed_forward import GatedSpec

STATE = "model_state_dict"


def import_pldr(
    source: str | Path, spec: str | Path, tokenizer: str | Path | None, out: str | Path, command: str | None = None
) -> Decoder:
    """Make the model folder `out` from a checkpoint, or from a folder with one (and with its SentencePiece model).

    spec: what it is, a preset's name or the file of a description. `UserError` names the file and the tensor that is
    missing, extra or misshapen. The tensors keep their precision.
    """
    check_new_folder(out)
    checkpoint = _one(Path(source), ".pth", "a checkpoint")
    pieces = Path(tokenizer) if tokenizer is not None else _beside(Path(source))
    model = ModelSpec.load(spec)
    mixer = _published_mixer(model, spec)
    speech = _tokenizer(pieces, model, spec)
    named = read_pth(checkpoint, STATE)
    check_tensors(named, published_shapes(model), checkpoint, str(spec))
    check_one_precision(named, checkpoint)
    tensors = from_pldr(named, model.layers, mixer.residual_units, mixer.gated_units)
    with torch.device("meta"):
        decoder = Decoder(model)
    decoder.load_state_dict(tensors, assign=True)
    made = {"imported_from": str(checkpoint), "sha256": sha256_of(checkpoint), "tokenizer": str(pieces)}
    write_model_folder(out, decoder, speech, {**made, "command": command})
    return decoder


def published_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The names of the published code and the shapes that a model of this description has there."""
    (block,) = spec.blocks
    mixer, hidden = block.mixer, block.feed_forward
    assert isinstance(mixer, PlgaSpec) and isinstance(hidden, GatedSpec)
    width, heads = spec.d_model, mixer.heads
    head_dim = width // heads
    shapes: dict[str, tuple[int, ...]] = {
        "decoder.embedding.weight": (spec.vocab_size, width),
        **_norm("decoder.layernorm1", width),
        **_linear("final_layer", width, spec.vocab_size),
    }
    for index in range(block.repeat):
        layer = f"decoder.dec_layers.{index}."
        shapes |= _norm(f"{layer}layernorm1", width) | _norm(f"{layer}layernorm2", width)
        shapes |= _gated(f"{layer}ffn", width, hidden.hidden)
        for part in ("wq", "wk", "wv", "dense"):
            shapes |= _linear(f"{layer}mha1.{part}", width, width)
        shapes |= _norm(f"{layer}mha1.layernorm1", head_dim)
        for unit in (f"{layer}mha1.reslayerAs.{r}" for r in range(mixer.residual_units)):
            shapes |= _norm(f"{unit}.layernormA", head_dim)
            for u in range(mixer.gated_units):
                shapes |= _gated(f"{unit}.denseAs.{u}", head_dim, mixer.metric_hidden)
        for tensor in ("Wlst", "blst", "pwlst", "alst", "balst"):
            shapes[f"{layer}mha1.plgatt_layer.{tensor}"] = (heads, head_dim, head_dim)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _gated(name: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    up = _linear(f"{name}.gluw1", width, hidden) | _linear(f"{name}.gluw2", width, hidden)
    return up | _linear(f"{name}.gluw3", hidden, width)


def _published_mixer(model: ModelSpec, spec: str | Path) -> PlgaSpec:
    """The mixer of a description that a published checkpoint can be of: the presets' but for sizes."""
    block, mixer = model.blocks[0], model.blocks[0].mixer
    if isinstance(mixer, PlgaSpec) and mixer.operator == "learned" and _same_but_sizes(model, block):
        return mixer
    raise UserError(f"--spec {spec}: not the architecture of a published PLDR-LLM, as preset pldr-v51-110m-1 has it")


def _same_but_sizes(model: ModelSpec, block: BlockSpec) -> bool:
    preset = ModelSpec.load("pldr-v51-110m-1").model_dump()
    plain = model.model_dump()
    if len(plain["blocks"]) != 1 or not isinstance(block.feed_forward, GatedSpec):
        return False
    for name in ("name", "vocab_size", "d_model", "context_length", "initialisation"):
        preset[name] = plain[name]
    ours, theirs = plain["blocks"][0], preset["blocks"][0]
    theirs["repeat"], theirs["feed_forward"]["hidden"] = ours["repeat"], ours["feed_forward"]["hidden"]
    for name in ("heads", "metric_hidden", "residual_units", "gated_units", "start"):
        theirs["mixer"][name] = ours["mixer"][name]
    return plain == preset


def _tokenizer(pieces: Path, model: ModelSpec, spec: str | Path) -> Tokenizer:
    tokenizer = tokenizer_from_sentencepiece(pieces)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{pieces}: {tokenizer.vocab_size} tokens: expected at most the vocab_size of {spec}, {model.vocab_size}"
        )
    return tokenizer


def _beside(source: Path) -> Path:
    if not source.is_dir():
        raise UserError("--tokenizer: missing; expected the SentencePiece .model that the checkpoint was trained with")
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
