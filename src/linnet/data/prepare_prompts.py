"""Data folders of prompts: rows of tokens that ask for an answer, and beside them what judges the answers.

A row is a prompt as the chat template prints it before an answer. `train.prompts.jsonl` and `validation.prompts.jsonl`
hold the lines that they are from, in the same order.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from linnet.core.errors import UserError
from linnet.core.files import sha256_of
from linnet.data.chat_template import ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.conversations import ASSISTANT, ChatConversation, ChatTurn
from linnet.data.data_folder import EncodedRow, checked_target, describe_folder, new_folder, write_side
from linnet.data.prepare_conversations import (
    CHECKED_CONVERSATIONS,
    Files,
    check_findings,
    check_limit,
    hash_of_files,
    messages_identity,
    paths_of,
    survey_files,
    template_settings,
)
from linnet.data.prompts import ChatPrompt, parse_prompt, read_prompts
from linnet.data.shards import Manifest, SplitInfo
from linnet.data.split import Split, check_fraction
from linnet.data.template_doctor import doctor
from linnet.data.token_data import TokenData
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import Advance, progress

PROMPTS = "prompts"
"""In the settings of a manifest: the hash of the files that the folder was made of."""


def prepare_prompts(
    files: Files,
    out: str | Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    validation: float | None = None,
    overwrite: bool = False,
    added: Sequence[str] = (),
    needs_checker: bool = False,
    limit: LengthLimit | None = None,
    checked: bool = False,
) -> Manifest:
    """Turn files of prompts (`data.prompts`) into a data folder, and return its manifest.

    Equal prompts are on the same side. needs_checker: a prompt without a checker is refused. limit: of the tokens of a
    prompt and its answer. checked: the template has been checked already. The other arguments are those of
    `prepare_conversations`. `UserError` for a file of which nothing could be held out.
    """
    paths, out = paths_of(files), checked_target(out, overwrite)
    check_fraction(validation)
    if not checked:
        check_prompt_template(paths, template, tokenizer)
    size_bytes = sum(path.stat().st_size for path in paths)
    survey, sources = survey_files(
        paths,
        partial(read_prompts, needs_checker=needs_checker),
        lambda each: (messages_identity(each.messages), each.messages),
    )
    holdout = survey.holdout(validation)
    if holdout.held_out is None:
        raise UserError(f"{', '.join(map(str, paths))}: all prompts are the same; expected others to hold out")
    encoder = ChatEncoder(template, tokenizer)
    with new_folder(out, overwrite) as folder:
        splits: dict[Split, SplitInfo] = {}
        settings = {
            PROMPTS: hash_of_files(paths), **template_settings(template, added), "validation": holdout.fraction,
            **({} if limit is None else limit.settings()),
        }  # fmt: skip
        with progress("encoding", 2 * size_bytes, "bytes") as advance:
            for side in ("train", "validation"):
                with rows_file(folder, side).open("w", encoding="utf-8") as lines:
                    rows = _rows(paths, encoder, limit, partial(holdout.holds, side), lines, advance)
                    splits[side] = write_side(folder, side, tokenizer, rows)
                settings[f"{side}_rows"] = sha256_of(rows_file(folder, side))
        if limit is not None:
            check_limit(limit, splits)
        return describe_folder(folder, tokenizer, splits, sources, settings, layout="prompts")


def check_prompt_template(files: Files, template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Check a template on the first prompts of each file with an answer behind them: a note for each check that fails.

    None is an error: the model is trained on what it draws, whatever the template prints behind an answer.
    """

    def answered(prompt: ChatPrompt) -> ChatConversation:
        answer = ChatTurn(ASSISTANT, prompt.reference or "Yes.")
        return ChatConversation((*prompt.messages, answer), prompt.place, prompt.variables)

    first = (islice(read_prompts(path, needs_checker=False), CHECKED_CONVERSATIONS) for path in paths_of(files))
    findings = doctor(template, tokenizer, map(answered, chain.from_iterable(first)))
    check_findings(findings, template, fatal=())


def rows_file(folder: Path, side: Split) -> Path:
    """The file with the lines of the prompts of a split."""
    return folder / f"{side}.{PROMPTS}.jsonl"


def rows_of(data: TokenData, side: Split) -> list[ChatPrompt]:
    """The prompts of a split of a data folder, in the order of its rows; `UserError` if the file was changed."""
    path = rows_file(data.folder, side)
    if not path.is_file() or sha256_of(path) != data.manifest.settings.get(f"{side}_rows"):
        raise UserError(f"{path}: missing, or changed since it was written; prepare the prompts again")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [parse_prompt(line, f"{path}:{number}", needs_checker=False) for number, line in enumerate(lines, 1)]


def _rows(
    paths: list[Path],
    encoder: ChatEncoder,
    limit: LengthLimit | None,
    is_on_side: Callable[[bytes], bool],
    lines: TextIO,
    advance: Advance,
) -> Iterator[EncodedRow]:
    """The prompts of one side that fit. lines: gets the line of each."""
    for path in paths:
        for prompt in read_prompts(path, advance, needs_checker=False):
            if not is_on_side(messages_identity(prompt.messages)):
                continue
            ids = encoder.encode_prompt(prompt.messages, prompt.variables)
            if limit is not None and not limit.fits(len(ids), prompt.place):
                limit.dropped += 1
                continue
            lines.write(json.dumps(prompt.row) + "\n")
            yield EncodedRow(ids)
