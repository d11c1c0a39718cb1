"""Read and write model folders of Transformers as tensors and plain data; nothing in a folder is executed.

linnet begins every text with the end token by itself, Transformers only if a rule in `tokenizer.json` says so. Export
adds that rule to linnet's own tokenizers, import removes it; a tokenizer from elsewhere keeps the rule that it has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError, note
from linnet.core.files import read_json, write_json
from linnet.data.tokenizer import TOKENIZER, Tokenizer, without_ends
from linnet.data.tokenizer_training import END
from linnet.interop.families import FAMILIES
from linnet.interop.families.family import Family, Linnet
from linnet.interop.tensor_names import check_one_precision
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import check_tensors

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
FORMAT = {"format": "pt"}
"""Metadata that Transformers requires in a safetensors file."""

_RULE = "post_processor"


def read_family(folder: Path) -> Family:
    """Read `config.json`; `UserError` names the field that linnet does not support."""
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: has no {CONFIG}; expected a model folder of Transformers")
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a mapping, found {type(plain).__name__}")
    kinds: tuple[type[Family], ...] = (*FAMILIES, Linnet)
    known = {kind.model_fields["model_type"].default: kind for kind in kinds}
    kind = known.get(str(plain.get("model_type")))
    if kind is None:
        raise UserError(f"{path}: model_type: {plain.get('model_type')!r}: expected one of {', '.join(known)}")
    return kind.read(plain, str(path))


def read_weights(folder: Path, family: Family, model: ModelSpec) -> tuple[ModelSpec, dict[str, Tensor], list[Path]]:
    """Return the description, the tensors by linnet's names, in the precision of the files, and these files.

    The description gets a head of its own if the files have one that differs from a tied embedding, as in Transformers.
    `UserError` names the tensor that is missing, unexpected or of another shape.
    """
    files = weight_files(folder)
    named: dict[str, Tensor] = {}
    for path in files:
        named |= {family.tensor_name(name): tensor for name, tensor in read_tensors(path).items()}
    where = files[0] if len(files) == 1 else folder / INDEX
    if model.head.tied:
        model = _with_head_of_file(named, family, model, where)
    expected = family.tensors.shapes(model)
    unused = {name for name in named.keys() - expected.keys() if family.buffers.search(name)}
    named = {name: tensor for name, tensor in named.items() if name not in unused}
    check_tensors(named, expected, where, f"the model in {CONFIG}")
    check_one_precision(named, where)
    tensors, storages = dict[str, Tensor](), set[int]()
    for name, tensor in family.tensors.from_published(named, model).items():
        shared = tensor.data_ptr() in storages  # a published tensor may become several
        tensors[name] = tensor.clone() if shared else tensor.contiguous()
        storages.add(tensor.data_ptr())
    return model, tensors, files


def _with_head_of_file(named: dict[str, Tensor], family: Family, model: ModelSpec, where: Path) -> ModelSpec:
    """Return the description of a tied model whose file may have a matrix of the head; a second copy is dropped."""
    untied = model.replace(head={**model.head.model_dump(), "tied": False})
    embedding, head = family.tensors.names(["embedding.tokens.weight", "head.weight"], untied)
    if head not in named:
        return model
    matrix = named.pop(head)
    if named.setdefault(embedding, matrix).equal(matrix):
        return model
    named[head] = matrix
    note(f"{where}: {head}: differs from {embedding}, so the head is not tied, although {CONFIG} says so")
    return untied


def weight_files(folder: Path) -> list[Path]:
    """Return `model.safetensors`, or the files in its index; `UserError` if there are none."""
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
    files = sorted({str(name) for name in names.values()})
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{index}: weight_map: {name!r}: expected the name of a .safetensors file beside it")
    return [folder / name for name in files]


def read_tokenizer(folder: Path, family: Family, model: ModelSpec, ends: Sequence[str] = ()) -> Tokenizer:
    """Read the tokenizer; `UserError` if there is none, or it has more tokens than the model.

    ends: names of the end tokens; none: those that the folder names.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        raise UserError(
            f"{folder}: has no {TOKENIZER}; expected one (Transformers' `AutoTokenizer`, loaded and saved, writes it)"
        )
    tokenizer = Tokenizer.load(path, ends)
    definition = read_json(path)
    own = family.begins_with_end or tokenizer.describe_token(tokenizer.end_id) == END
    if own and definition.get(_RULE) == _end_first(tokenizer):
        tokenizer = Tokenizer({**definition, _RULE: None}, str(path), dict.fromkeys(tokenizer.end_ids, str(path)))
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(f"{path}: {tokenizer.vocab_size} tokens: expected at most vocab_size, {model.vocab_size}")
    return tokenizer


def write_folder(folder: Path, family: Family, decoder: Decoder, tokenizer: Tokenizer) -> None:
    """Write description, weights and tokenizer of a family's model under Transformers' names.

    Ids without a token of the tokenizer are suppressed in generation, as in linnet.
    """
    begin = _write_tokenizer(folder, tokenizer, decoder.spec.context_length, family.begins_with_end)
    several = len(tokenizer.end_ids) > 1
    ends = {"bos_token_id": begin, "eos_token_id": list(tokenizer.end_ids) if several else tokenizer.end_id}
    ends |= {"pad_token_id": tokenizer.end_id}
    write_json(folder / CONFIG, {**family.config(), **ends, "dtype": str(decoder.dtype).removeprefix("torch.")})
    unused = list(range(tokenizer.vocab_size, decoder.spec.vocab_size))
    write_json(folder / GENERATION, {**ends, **({"suppress_tokens": unused} if unused else {})})
    write_tensors(folder / WEIGHTS, family.tensors.to_published(decoder.state_dict(), decoder.spec), FORMAT)


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, context_length: int, begins_with_end: bool) -> int:
    """Write the tokenizer's files and return the id that begins a text.

    begins_with_end: if True, a tokenizer from elsewhere without the rule gets it too.
    """
    path, end = folder / TOKENIZER, tokenizer.describe_token(tokenizer.end_id)
    tokenizer.save(path)
    definition = read_json(path)
    rule = without_ends(definition.get(_RULE))
    if (begins_with_end or end == END) and rule is None:
        rule = _end_first(tokenizer)
    write_json(path, {**definition, _RULE: rule})
    before = tokenizers.Tokenizer.from_file(str(path)).encode("").ids
    begin = before[0] if before else tokenizer.end_id
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # their names in a text are ordinary text
        "bos_token": tokenizer.describe_token(begin),
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    write_json(folder / TOKENIZER_CONFIG, config)
    return begin


def _end_first(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the rule of the tokenizers library that puts the end token before each text."""
    name = tokenizer.describe_token(tokenizer.end_id)
    end = {"SpecialToken": {"id": name, "type_id": 0}}
    first, second = ({"Sequence": {"id": sequence, "type_id": 0}} for sequence in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [end, first],
        "pair": [end, first, end, second],
        "special_tokens": {name: {"id": name, "ids": [tokenizer.end_id], "tokens": [name]}},
    }
