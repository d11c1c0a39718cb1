"""The text of a suite: one tokenizer, a data folder for each part, the same held-out documents in all."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from linnet.core.checksum import digest
from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.chat_setup import OWN_TEMPLATE, setup_of
from linnet.data.conversations import read_conversations
from linnet.data.corpus import read_split, single_document_note
from linnet.data.data_folder import TokenRow, prepare_rows
from linnet.data.prepare import prepare_texts
from linnet.data.prepare_conversations import prepare_conversations
from linnet.data.split import Split
from linnet.data.synthesise import STORIES, synthesise
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import KINDS
from linnet.evaluation.abilities.contract import Question, SymbolEncoder
from linnet.experiments.results import hash_of
from linnet.experiments.suite import Suite, TextSpec, TokenizerSpec
from linnet.present.progress import progress
from linnet.stories import texts
from linnet.stories.instructions import examples

STORIES_SEED, ABILITY_SEED = 0, 0
STORIES_PER_VALIDATION_STORY = 20
TOKENIZER_ITEMS = 2000
"""Questions that the tokenizer of an ability in words is trained on."""


def built_in_stories(stories: int, names: int) -> tuple[list[str], list[str]]:
    """Stories to train on, with `names` of each kind, and the stories held out beside them."""
    held_out = validation_stories(stories)
    with progress("writing stories", stories + held_out, "stories") as advance:

        def written(count: int, split: Split) -> Iterator[str]:
            for text in texts(count, STORIES_SEED, split, names):
                advance(1)
                yield text

        return list(written(stories, "train")), list(written(held_out, "validation"))


def validation_stories(stories: int) -> int:
    """Number of stories (or items) held out beside `stories` to train on."""
    return max(2, stories // STORIES_PER_VALIDATION_STORY)


def is_prepared(folder: Path, name: str) -> bool:
    """True if the folder holds the text of that name, prepared by an earlier call."""
    return folder.is_dir() and TokenData.open(folder).manifest.sources[0].file == name


def prepare_data(
    suite: Suite, out: Path, origin: str = "suite", log: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Prepare the data folder of each part in the suite's folder, unless they hold the same text already.

    The tokenizer is trained on the whole text. Documents are divided into parts of equal number, in their order.
    `UserError` (after `origin`) if there are fewer documents than parts.
    """
    folders, text, tokenizer = suite.data_folders(out), suite.text, suite.tokenizer
    if text is None:
        return folders
    name = f"{text.model_dump_json(exclude_defaults=True)} {tokenizer.model_dump_json()}"
    if text.instructions is not None:
        name = str(out / f"instructions-{hash_of(name)}.jsonl")
    if all(is_prepared(folder, name) for folder in folders):
        return folders
    log("preparing the text")
    if text.ability is not None:
        _prepare_ability(text, tokenizer, folders, name)
        return folders
    if text.instructions is not None:
        _prepare_instructions(text, tokenizer, folders[0], Path(name))
        return folders
    if text.stories is not None:
        train, validation = built_in_stories(text.stories, text.names)
    else:
        sides, sources = read_split(text.files or [])
        train, validation = sides["train"], sides["validation"]
        if whole_file := single_document_note(sources):
            log(f"note: {whole_file}")
    if len(train) < len(folders):
        raise UserError(f"{origin}: text.parts: {len(folders)}: the text has only {len(train)} documents to train on")
    kind, vocab_size = tokenizer.kind, tokenizer.vocab_size
    if len(folders) > 1:
        whole = folders[0].parent / "whole"
        prepare_texts(train, validation, whole, kind, vocab_size, name, overwrite=True)
        kind, vocab_size = str(whole / "tokenizer.json"), None
    bounds = [len(train) * index // len(folders) for index in range(len(folders) + 1)]
    for index, folder in enumerate(folders):
        own = train[bounds[index] : bounds[index + 1]]
        prepare_texts(own, validation, folder, kind, vocab_size, name, overwrite=True)
    return folders


def _prepare_ability(text: TextSpec, settings: TokenizerSpec, folders: Sequence[Path], name: str) -> None:
    """Write labeled rows to each part; training and held-out rows share no question. All parts share a tokenizer."""
    abilities = [text.ability_of(part) for part in range(1, len(folders) + 1)]
    if abilities[0].alphabet:  # one token for each symbol
        tokenizer = Tokenizer.train("char", [abilities[0].alphabet])
    elif settings.kind not in KINDS:
        tokenizer = Tokenizer.load(settings.kind)
    else:  # trained on all forms
        items = [item for ability in abilities for item in ability.items(TOKENIZER_ITEMS, ABILITY_SEED, "train")]
        questions = [item.prompt + item.answer for item in items if isinstance(item, Question)]
        tokenizer = Tokenizer.train(settings.kind, questions, settings.vocab_size)
    encoder, held_out = SymbolEncoder(tokenizer), validation_stories(text.items)
    for ability, folder in zip(abilities, folders, strict=True):
        with progress("writing items", text.items + held_out, "items") as advance:

            def row(item: Any, advance: Callable[[int], None] = advance) -> TokenRow:
                advance(1)
                written: TokenRow = item.row(encoder)
                return written

            train = map(row, ability.items(text.items, ABILITY_SEED, "train"))
            validation = map(row, ability.items(held_out, ABILITY_SEED, "validation"))
            prepare_rows(train, validation, folder, tokenizer, name)


def _prepare_instructions(text: TextSpec, settings: TokenizerSpec, folder: Path, file: Path) -> None:
    """Write conversations of the story world as rows; linnet's chat template encloses their messages."""
    assert text.instructions is not None
    synthesise(STORIES, file, text.instructions, STORIES_SEED, "train", text.types, overwrite=True)
    if settings.kind in KINDS:
        contents = [turn.content or "" for each in read_conversations(file) for turn in each.messages]
        tokenizer = Tokenizer.train(settings.kind, contents, settings.vocab_size)
    else:
        tokenizer = Tokenizer.load(settings.kind)
    setup = setup_of(tokenizer)
    prepare_conversations(file, folder, setup.template, setup.tokenizer, overwrite=True)


def file_hashes(text: TextSpec | None, origin: str) -> list[str]:
    """SHA-256 of each file of the text; `UserError` (after `origin`) if one is missing."""
    hashes = []
    for name in (text.files if text is not None else None) or []:
        if not Path(name).is_file():
            raise UserError(f"{origin}: text.files: {name}: no such file")
        hashes.append(sha256_of(name))
    return hashes


def text_hash(suite: Suite) -> str:
    """Hash of the documents, wherever their files lie, and of the tokenizer that is made of them."""
    text, tokenizer = suite.text, suite.tokenizer.model_dump(mode="json")
    if text is None:
        return TokenData.open(suite.data_folders(Path())[0]).hash
    if text.ability is not None:
        return hash_of([text.model_dump(mode="json"), tokenizer])
    if text.stories is not None:
        described: dict[str, Any] = {"stories": text.stories, "names": text.names}
        content = [digest(json.dumps(built_in_stories(text.stories, text.names)).encode())]
    elif text.instructions is not None:
        described = {"types": text.types, "template": OWN_TEMPLATE}
        rows = islice(examples(STORIES_SEED, "train", text.types), text.instructions)
        content = [digest(json.dumps(list(rows)).encode())]
    else:
        described, content = {}, file_hashes(text, suite.name)
    return hash_of([described, content, tokenizer])
