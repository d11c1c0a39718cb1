"""The text of a comparison: one tokenizer, a data folder for each part, the same held-out documents in all."""

from collections.abc import Callable
from pathlib import Path

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.prepare import prepare_texts, read_split, single_document_note
from linnet.experiments.comparison.abilities import prepare_ability
from linnet.experiments.comparison.spec import ComparisonSpec, TextSpec
from linnet.experiments.text import built_in_stories, is_prepared

WHOLE = "whole"


def prepare_parts(
    spec: ComparisonSpec, folder: Path, origin: str = "comparison", say: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """The data folder of each part, below `folder`; made unless they are there from the same text.

    The tokenizer is trained on the whole text. Documents are cut into parts of equal number, in their order.
    `UserError` with `origin` in front where there are fewer documents than parts.
    """
    parts = [folder / f"part-{index + 1}" for index in range(spec.text.part_count)]
    name = f"{spec.text.model_dump_json()} {spec.tokenizer.model_dump_json()}"
    if all(is_prepared(part, name) for part in parts):
        return parts
    if spec.text.ability is not None:
        prepare_ability(spec, parts, name)
        return parts
    train, validation = _documents(spec.text, say)
    if len(train) < len(parts):
        raise UserError(f"{origin}: text.parts: {len(parts)}: the text has only {len(train)} documents to train on")
    whole = folder / WHOLE
    tokenizer = spec.tokenizer
    prepare_texts(train, validation, whole, tokenizer.kind, tokenizer.vocab_size, name, overwrite=True)
    bounds = [len(train) * index // len(parts) for index in range(len(parts) + 1)]
    for index, part in enumerate(parts):
        own = train[bounds[index] : bounds[index + 1]]
        prepare_texts(own, validation, part, str(whole / "tokenizer.json"), None, name, overwrite=True)
    return parts


def file_hashes(text: TextSpec, origin: str) -> list[str]:
    """SHA-256 of each file of the text; `UserError` with `origin` in front where one is missing."""
    hashes = []
    for name in text.files or []:
        if not Path(name).is_file():
            raise UserError(f"{origin}: text.files: {name}: no such file")
        hashes.append(sha256_of(name))
    return hashes


def _documents(text: TextSpec, say: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """Documents to train on, and those held out; says of which files only one of both can be had."""
    if text.stories is not None:
        return built_in_stories(text.stories, text.names)
    sides, sources = read_split(text.files or [])
    if whole := single_document_note(sources):
        say(f"note: {whole}")
    return sides["train"], sides["validation"]
