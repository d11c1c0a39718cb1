"""A folder as Transformers keeps models, read as tensors and plain data alone."""

from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.core.arrays import read_tensors
from linnet.core.errors import UserError
from linnet.core.files import read_json
from linnet.data.tokenizer import Tokenizer
from linnet.interop.families import FAMILIES
from linnet.interop.families.family import Family
from linnet.interop.families.linnet import Linnet
from linnet.interop.families.tokenizer_files import read_tokenizer_file
from linnet.interop.pth import check_one_precision
from linnet.model.skip_init import meta_decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import check_tensors

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"


def read_family(folder: Path) -> Family:
    """What `config.json` says; `UserError` names the field that linnet cannot say."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: has no {CONFIG}; expected a folder as Transformers keeps models")
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    kinds: tuple[type[Family], ...] = (*FAMILIES, Linnet)
    known = {kind.model_fields["model_type"].default: kind for kind in kinds}
    kind = known.get(str(plain.get("model_type")))
    if kind is None:
        raise UserError(f"{path}: model_type: {plain.get('model_type')!r}: expected one of {', '.join(known)}")
    return kind.read(plain, str(path))


def read_published(folder: Path, family: Family, model: ModelSpec) -> tuple[dict[str, Tensor], list[Path]]:
    """Our tensors, in the precision of the files, and these; `UserError` names the tensor that does not fit."""
    files = weight_files(folder)
    named: dict[str, Tensor] = {}
    for path in files:
        named |= {family.current(name): tensor for name, tensor in read_tensors(path).items()}
    published = family.maps.theirs(meta_decoder(model).state_dict(), model)
    expected = {name: tensor.shape for name, tensor in published.items()}
    spare = {name for name in named.keys() - expected.keys() if family.buffers.search(name)}
    if model.head.tied:  # some files have the matrix twice; Transformers reads the embedding's
        spare |= named.keys() & {"lm_head.weight", "embed_out.weight"}
    named = {name: tensor for name, tensor in named.items() if name not in spare}
    where = files[0] if len(files) == 1 else folder / INDEX
    check_tensors(named, expected, where, f"the model in {CONFIG}")
    check_one_precision(named, where)
    return {name: tensor.contiguous() for name, tensor in family.maps.ours(named, model).items()}, files


def weight_files(folder: Path) -> list[Path]:
    """`model.safetensors`, or the files that its index names; `UserError` where there are none."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        raise UserError(
            f"{folder}: has no {WEIGHTS} and no {INDEX}; expected one (Transformers' `save_pretrained` writes it)"
        )
    plain = read_json(index)
    names = plain.get("weight_map") if isinstance(plain, dict) else None
    if not isinstance(names, dict) or not names:
        raise UserError(f"{index}: weight_map: expected the names of tensors and of their files")
    return [folder / _plain_name(name, index) for name in sorted({str(name) for name in names.values()})]


def _plain_name(name: str, index: Path) -> str:
    if Path(name).name != name or not name.endswith(".safetensors"):
        raise UserError(f"{index}: weight_map: {name!r}: expected the name of a .safetensors file beside it")
    return name


def read_tokenizer(folder: Path, family: Family, model: ModelSpec) -> Tokenizer:
    """The tokenizer; `UserError` where there is none, or it has more tokens than the model."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(
            f"{folder}: has no {TOKENIZER}; expected one (Transformers' `AutoTokenizer`, loaded and saved, writes it)"
        )
    tokenizer = read_tokenizer_file(path, family.begins_with_end)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(f"{path}: {tokenizer.vocab_size} tokens: expected at most vocab_size, {model.vocab_size}")
    return tokenizer


def end_tokens(folder: Path) -> list[int]:
    """The ids at which Transformers ends a text, as the files of the folder say; none where they do not."""
    for name in ("generation_config.json", CONFIG):
        plain: Any = read_json(folder / name) if (folder / name).is_file() else None
        said = plain.get("eos_token_id") if isinstance(plain, dict) else None
        if said is not None:
            return [token for token in (said if isinstance(said, list) else [said]) if isinstance(token, int)]
    return []
