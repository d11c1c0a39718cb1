"""Read and write model folders of Transformers as tensors and plain data; nothing in a folder is executed.

linnet begins every text with the end token by itself, Transformers only if a rule in `tokenizer.json` says so. Export
adds that rule to linnet's own tokenizers, import removes it; a tokenizer from elsewhere keeps the rule that it has.
"""

import codecs
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.checksum import check_files
from linnet.core.errors import UserError, note
from linnet.core.files import open_file, read_json, write_json, write_text
from linnet.data.chat_template import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATES,
    TOKENIZER_CONFIG,
    chat_files,
    special_tokens_of,
)
from linnet.data.tokenizer import TOKENIZER, Tokenizer, without_ends
from linnet.data.tokenizer_training import END
from linnet.interop.families import FAMILIES, REFUSED
from linnet.interop.families.family import Family, Linnet
from linnet.interop.families.matching import plain_form
from linnet.interop.peft import PeftParts
from linnet.interop.tensor_names import check_one_precision
from linnet.model.decoder import Decoder
from linnet.model.folder import PUBLISHED, published_files
from linnet.model.spec import ModelSpec
from linnet.model.store import check_tensors

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
REPEATED = ("special_tokens_map.json", "added_tokens.json")
"""Files of some folders that repeat what the two files of the tokenizer say."""
_LOOKED_AT_BYTES = 1 << 20
"""The beginning of a file that tells whether it is text."""
FORMAT = {"format": "pt"}
"""Metadata that Transformers requires in a safetensors file."""

_RULE = "post_processor"


def files_to_keep(folder: Path) -> dict[str, Path]:
    """Return the text files of a published folder by name, and SentencePiece models, which have the suffix `.model`.

    Weights of any framework are no text; lists of their files, hidden files and most subfolders are left out, too.
    """
    paths = [*folder.iterdir(), *(folder / CHAT_TEMPLATES).glob("*")]
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted(paths)
        if path.is_file() and not path.name.startswith(".") and (path.suffix == ".model" or _is_text(path))
    }


def _is_text(path: Path) -> bool:
    """Return True for UTF-8, unless it lists the files of weights."""
    with open_file(path) as file:
        begin = file.read(_LOOKED_AT_BYTES)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begin)
    except UnicodeDecodeError:
        return False
    return b"\0" not in begin and not (path.name.endswith(".index.json") and b'"weight_map"' in begin)


def published_folder(folder: Path | None) -> Path | None:
    """Return the folder with what a model folder keeps of its published files; `UserError` if one was changed."""
    names = published_files(folder)
    if folder is None or not names:
        return None
    check_files(folder, [f"{PUBLISHED}/{name}" for name in names])
    return folder / PUBLISHED


def published_family(published: Path, decoder: Decoder) -> Family | None:
    """Return the family of a published folder if its `config.json` still describes the model; else None.

    None also if its tensors cannot be written as published: rows of a position table that only padding uses are not
    kept at import, and norms that were one there may differ after training.
    """
    if not (published / CONFIG).is_file():
        return None
    family, spec, ours = read_family(published), decoder.spec, decoder.state_dict()
    if plain_form(family.model(spec.name, str(published / CONFIG))) != plain_form(spec):
        return None
    back = family.tensors.from_published(family.tensors.to_published(ours, spec), spec)
    return family if all(torch.equal(tensor, back[name]) for name, tensor in ours.items()) else None


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
    if kind is None and "blocks" in plain:
        accepted = f"one of Transformers, as `linnet export {folder} --to transformers --out NEW` writes it"
        raise UserError(f"{folder}: a model folder of linnet; expected {accepted}")
    if kind is None:
        found = str(plain.get("model_type"))
        reason = f"{REFUSED[found]}; " if found in REFUSED else ""
        raise UserError(f"{path}: model_type: {found!r}: {reason}expected one of {', '.join(known)}")
    return kind.read(plain, str(path))


def read_weights(
    folder: Path, family: Family, model: ModelSpec, parts: PeftParts | None = None
) -> tuple[ModelSpec, dict[str, Tensor], list[Path]]:
    """Return the description, the tensors by linnet's names, in the precision of the files, and these files.

    The description gets a head of its own if the files have one that differs from a tied embedding, as in Transformers.
    parts: what is added to the weights; its file is then among those returned. `UserError` names the tensor that is
    missing, unexpected or of another shape.
    """
    files = weight_files(folder)
    named: dict[str, Tensor] = {}
    for path in files:
        named |= {family.tensor_name(name): tensor for name, tensor in read_tensors(path).items()}
    where = files[0] if len(files) == 1 else folder / INDEX
    if parts is not None:
        named, files = parts.added_to(named, family.tensor_name), [*files, parts.path]
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


def note_other_ids(folder: Path, tokenizer: Tokenizer) -> None:
    """Tell which added tokens have other ids in Transformers, which numbers those behind ids without a token anew."""
    path = folder / TOKENIZER
    written = read_json(path).get("added_tokens") or []
    if len(written) == len(tokenizer.added_tokens):  # no gap was filled
        return
    library = tokenizers.Tokenizer.from_file(str(path))
    others = {added.content: token for token, added in library.get_added_tokens_decoder().items()}
    moved = [token for token in written if others.get(token["content"], token["id"]) < token["id"]]
    if moved:
        name, kept = moved[0]["content"], moved[0]["id"]
        more = f" (and {len(moved) - 1:,} more)" if len(moved) > 1 else ""
        problem = f"id {kept} stands behind ids without a token and is kept; Transformers makes it {others[name]}{more}"
        note(f"{path}: added_tokens: {name!r}: {problem}")


def write_folder(
    folder: Path,
    family: Family,
    decoder: Decoder,
    tokenizer: Tokenizer,
    published: Path | None = None,
    same_model: bool = False,
) -> None:
    """Write description, weights and tokenizer of a family's model under Transformers' names.

    published: the folder with the files that the model was published with; those that are still valid are copied, byte
    for byte. Ids without a token of the tokenizer are suppressed in generation, as in linnet, unless it says otherwise.
    """
    spec, same_tokenizer = decoder.spec, False
    if published is not None:
        shutil.copytree(published, folder, dirs_exist_ok=True)
        if (published / TOKENIZER).is_file():
            same_tokenizer = _keep_tokenizer(folder, read_tokenizer(published, family, spec), tokenizer)
    begin = _write_tokenizer(folder, tokenizer, spec.context_length, family.begins_with_end, same_tokenizer)
    several = len(tokenizer.end_ids) > 1
    ends = {"bos_token_id": begin, "eos_token_id": list(tokenizer.end_ids) if several else tokenizer.end_id}
    ends |= {"pad_token_id": tokenizer.end_id}
    original = read_json(folder / CONFIG) if same_model else {}
    dtype = {"torch_dtype" if "torch_dtype" in original else "dtype": str(decoder.dtype).removeprefix("torch.")}
    fields = {**({} if same_model else family.config()), **({} if same_model and same_tokenizer else ends), **dtype}
    _update(folder / CONFIG, original, fields)
    unused = list(range(tokenizer.vocab_size, spec.vocab_size))
    if not (same_tokenizer and (folder / GENERATION).is_file()):
        original = read_json(folder / GENERATION) if (folder / GENERATION).is_file() else {}
        _update(folder / GENERATION, original, {**ends, **({"suppress_tokens": unused} if unused else {})})
    write_tensors(folder / WEIGHTS, family.tensors.to_published(decoder.state_dict(), spec), FORMAT)


def write_chat_template(folder: Path, own: Path | None) -> None:
    """Give an exported folder the chat template that lies in a model folder itself, `own`, with what it names.

    Its control tokens are then read as such, for which Transformers has one setting for all texts.
    """
    files = chat_files(own)
    if own is None or CHAT_TEMPLATE not in files:
        return
    write_text(folder / CHAT_TEMPLATE, files[CHAT_TEMPLATE])
    config = read_json(folder / TOKENIZER_CONFIG)
    config.pop("chat_template", None)
    write_json(folder / TOKENIZER_CONFIG, {**config, **special_tokens_of(own), "split_special_tokens": False})


def _keep_tokenizer(folder: Path, published: Tokenizer, tokenizer: Tokenizer) -> bool:
    """Return True if the published files of a tokenizer are valid; remove other forms of a vocabulary that are not."""
    before, after = ({**one.definition, _RULE: None} for one in (published, tokenizer))
    if before != after:
        for name in _vocabulary_files(folder) - {TOKENIZER, TOKENIZER_CONFIG}:
            (folder / name).unlink(missing_ok=True)
    # Transformers numbers added tokens without gaps, so a file with gaps is replaced by one without.
    added = read_json(folder / TOKENIZER).get("added_tokens") or []
    return published.hash == tokenizer.hash and len(added) == len(tokenizer.added_tokens)


def _vocabulary_files(folder: Path) -> set[str]:
    """Return the names of the files that Transformers' tokenizers of this folder read a vocabulary from."""
    from transformers.models.auto import tokenization_auto as auto

    plain, config = (
        read_json(folder / name) if (folder / name).is_file() else {} for name in (TOKENIZER_CONFIG, CONFIG)
    )
    kinds = (
        "PreTrainedTokenizerFast",
        plain.get("tokenizer_class"),
        auto.TOKENIZER_MAPPING_NAMES.get(config.get("model_type")),
    )
    classes = [auto.tokenizer_class_from_name(str(kind)) for kind in kinds if kind]
    return {name for kind in classes if kind is not None for name in kind.vocab_files_names.values()}


def _update(path: Path, original: dict[str, Any], fields: dict[str, Any]) -> None:
    """Write JSON data with some other fields; a file that has them already stays as it is."""
    if not path.is_file() or {**original, **fields} != read_json(path):
        write_json(path, {**original, **fields})


def _write_tokenizer(
    folder: Path, tokenizer: Tokenizer, context_length: int, begins_with_end: bool, published: bool
) -> int:
    """Write the tokenizer's files and return the id that begins a text.

    begins_with_end: if True, a tokenizer from elsewhere without the rule gets it too. published: the files in the
    folder are those of this tokenizer; only a missing one is written.
    """
    path, end = folder / TOKENIZER, tokenizer.describe_token(tokenizer.end_id)
    if not published:
        rule = without_ends(tokenizer.definition.get(_RULE))
        if (begins_with_end or end == END) and rule is None:
            rule = _end_first(tokenizer)
        write_json(path, {**tokenizer.definition, _RULE: rule})
        for name in REPEATED:
            (folder / name).unlink(missing_ok=True)
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
    there = (folder / TOKENIZER_CONFIG).is_file()
    if not (published and there):
        _update(folder / TOKENIZER_CONFIG, read_json(folder / TOKENIZER_CONFIG) if there else {}, config)
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
