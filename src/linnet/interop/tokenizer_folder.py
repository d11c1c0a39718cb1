"""The tokenizer in a folder of Transformers: what its files say beside a tokenizer.json, or without one.

A folder without tokenizer.json has the vocabulary of a class in Python code, `tokenizer_class`: those of byte-level
byte-pair encoding (vocab.json, merges.txt) and of SentencePiece models whose ids are those of their pieces are known.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from linnet.core.errors import UserError
from linnet.core.files import read_json, read_text
from linnet.data.tokenizer import TOKENIZER, Tokenizer

PIECES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
"""Names of SentencePiece models."""

CONFIG, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_BYTE_LEVEL_CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "CodeGenTokenizer", "Qwen2Tokenizer")
_PIECE_CLASSES = ("LlamaTokenizer", "GemmaTokenizer", "T5Tokenizer")
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class DeclaredToken(NamedTuple):
    """An added token that files beside the vocabulary declare. token: its id; None: that of the vocabulary."""

    name: str
    token: int | None
    flags: dict[str, bool]


def read_definition(folder: Path, file: Path) -> dict[str, Any]:
    """The data of a tokenizer.json, or of vocab.json and merges.txt, with the tokens that other files declare.

    `UserError` for a class whose rules are not known, and files that do not hold what their names say.
    """
    definition = read_json(file) if file.name == TOKENIZER else _byte_level(folder)
    if not isinstance(definition, dict) or not isinstance(definition.get("model"), dict):
        raise UserError(f"{file}: not a tokenizer.json (no field 'model')")
    vocabulary, added = definition["model"].get("vocab"), list(definition.get("added_tokens") or [])
    known = {token["content"] for token in added}
    for name, token, flags in declared_tokens(folder).values():
        inside = vocabulary.get(name) if isinstance(vocabulary, dict) else None
        number = token if inside is None else inside
        # A tokenizer.json lists all added tokens itself; a special token with no id anywhere is told by `unnumbered`.
        if name not in known and number is not None and (token is not None or file.name != TOKENIZER):
            added.append({"id": number, "content": name, **flags})
    return {**definition, "added_tokens": sorted(added, key=lambda each: int(each["id"]))}


def declared_tokens(folder: Path) -> dict[str, DeclaredToken]:
    """The added tokens by name: of tokenizer_config.json, added_tokens.json and special_tokens_map.json."""
    config, named = _mapping(folder / CONFIG), _mapping(folder / SPECIAL)
    special = {name for fields in (config, named) for name in _special_names(fields)}
    found: dict[str, DeclaredToken] = {}
    for number, fields in (config.get("added_tokens_decoder") or {}).items():
        if not isinstance(fields, dict) or not isinstance(fields.get("content"), str) or not str(number).isdigit():
            raise UserError(f"{folder / CONFIG}: added_tokens_decoder: {number}: expected an id, and its token")
        flags = {flag: bool(fields.get(flag)) for flag in _FLAGS}
        found[fields["content"]] = DeclaredToken(fields["content"], int(number), flags)
    for name, number in _mapping(folder / ADDED).items():
        if not isinstance(number, int):
            raise UserError(f"{folder / ADDED}: {name}: {number!r}: expected an id")
        found.setdefault(name, DeclaredToken(name, number, _flags(name in special)))
    for name in sorted(special):
        found.setdefault(name, DeclaredToken(name, None, _flags(True)))
    return found


def asked_by(folder: Path) -> Iterator[str]:
    """What a folder's files ask for that no tokenizer.json holds, or linnet does otherwise."""
    config = _mapping(folder / CONFIG)
    for field in ("add_bos_token", "add_eos_token"):
        if config.get(field) and not (folder / TOKENIZER).is_file():
            yield f"{CONFIG}: {field}: left out; the end token comes before a document"
    if config.get("clean_up_tokenization_spaces"):
        yield f"{CONFIG}: clean_up_tokenization_spaces: left out; decoding changes no spaces"
    if config.get("chat_template") or (folder / "chat_template.jinja").is_file():
        yield f"{folder}: its chat template is not part of a {TOKENIZER}; `linnet import transformers` takes it along"


def unnumbered(folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """Special tokens that a folder names and no file of it gives an id."""
    names = {tokenizer.token_name(token) for token in range(tokenizer.vocab_size)}
    for name, token, _ in declared_tokens(folder).values():
        if token is None and name not in names:
            yield f"{name} is named as a special token and has no id; Transformers adds it behind the others"


def _byte_level(folder: Path) -> dict[str, Any]:
    """The data of a tokenizer.json for vocab.json and merges.txt, by the rules of the folder's class."""
    config = _mapping(folder / CONFIG)
    class_name = _class_of(config, folder, _BYTE_LEVEL_CLASSES)
    vocabulary = _mapping(folder / "vocab.json")
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in vocabulary.values()):
        raise UserError(f"{folder / 'vocab.json'}: expected an id for each token")
    library = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=_read_merges(folder / "merges.txt", vocabulary)))
    prefix = bool(config.get("add_prefix_space"))
    if class_name == "Qwen2Tokenizer":
        library.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(_QWEN2), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    else:
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    definition: dict[str, Any] = json.loads(library.to_str())
    return definition


def _read_merges(path: Path, vocabulary: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of merges.txt; `UserError` names a line that is none, or makes a token that does not exist."""
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip() or line.startswith("#version"):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            expected = "expected two tokens of vocab.json, which make a third"
            raise UserError(f"{path}, line {number}: {line[:40]!r}: {expected}")
        merges.append((pair[0], pair[1]))
    return merges


def check_pieces(folder: Path) -> None:
    """`UserError` where the class of a folder does not give a SentencePiece model's pieces their own ids."""
    _class_of(_mapping(folder / CONFIG), folder, _PIECE_CLASSES)


def _class_of(config: dict[str, Any], folder: Path, accepted: tuple[str, ...]) -> str:
    """The class of a folder without tokenizer.json; a folder that names none has the first of `accepted`."""
    name = str(config.get("tokenizer_class") or accepted[0]).removesuffix("Fast")
    if name not in accepted:
        names = f"{', '.join(accepted)}, or a {TOKENIZER}, which save_pretrained of Transformers writes"
        raise UserError(f"{folder / CONFIG}: tokenizer_class: {name}", accepted=names)
    return name


def _special_names(fields: dict[str, Any]) -> Iterator[str]:
    others = fields.get("additional_special_tokens") or fields.get("extra_special_tokens") or []
    values = [fields.get(field) for field in _NAMED]
    for value in [*values, *(others.values() if isinstance(others, dict) else others)]:
        name = value.get("content") if isinstance(value, dict) else value
        if isinstance(name, str):
            yield name


def _flags(special: bool) -> dict[str, bool]:
    return {**dict.fromkeys(_FLAGS, False), "special": special}


def _mapping(path: Path) -> dict[str, Any]:
    """A JSON object; empty for a file that is not there."""
    plain = read_json(path) if path.is_file() else {}
    if not isinstance(plain, dict):
        raise UserError(f"{path}: expected a JSON object")
    return plain
