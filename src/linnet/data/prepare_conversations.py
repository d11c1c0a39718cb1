"""From files of conversations to a data folder: rows of tokens, of which those that a model is to write count."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from linnet.core.errors import UserError, note
from linnet.core.files import sha256_of
from linnet.data.chat_template import CHAT_TEMPLATE, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.conversations import ChatConversation, ChatTurn, read_conversations
from linnet.data.data_folder import EncodedRow, checked_target, describe_folder, new_folder, write_side
from linnet.data.shards import Manifest, Part, SourceInfo, SplitInfo
from linnet.data.split import Split, Survey, check_fraction, content_hash
from linnet.data.target_weights import role_numbers
from linnet.data.template_doctor import FATAL, TemplateFinding, doctor
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import Advance, progress

Row = TypeVar("Row")

CHECKED_CONVERSATIONS = 200
"""How many conversations of each file, from the first on, the template is checked on before any is prepared."""

CHAT = "chat"
"""In the settings of a manifest: the hash of the files of conversations that the folder was made of."""

SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens", "added_tokens"
"""In the settings of a manifest: what `ChatTemplate` has of this name, and the names that `ChatSetup` has of this one.
"""

TEMPLATE_FINDINGS = "template_findings"
"""In the settings of a manifest: what the checks of the template told, which each run on the data repeats."""

Files = str | Path | Sequence[str | Path]


def prepare_conversations(
    files: Files,
    out: str | Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    validation: float | None = None,
    overwrite: bool = False,
    added: Sequence[str] = (),
    limit: LengthLimit | None = None,
) -> Manifest:
    """Turn files of conversations (`read_conversations`) into a data folder of rows, and return its manifest.

    A row is one conversation, of which the answers and the stop tokens after them count in the loss; the role of each
    token is kept beside them (`target_weights`). Conversations that begin with the same messages up to the first answer
    are on the same side. validation: the fraction of the bytes to hold out. added: the control tokens that the
    tokenizer has and the model lacks. limit: of the tokens of a conversation; None: they may have any number, of which
    a run is told later. `UserError` for a template without a stop token after every answer (`template_doctor`); what
    else the checks find is told.
    """
    paths, out = paths_of(files), checked_target(out, overwrite)
    check_fraction(validation)
    told = check_chat_template(paths, template, tokenizer)
    size_bytes = sum(path.stat().st_size for path in paths)
    survey, sources = survey_files(paths, read_conversations, lambda each: (_identity(each), each.messages))
    holdout = survey.holdout(validation)
    if holdout.held_out is None:
        names = ", ".join(map(str, paths))
        raise UserError(f"{names}: all conversations begin with the same messages; expected others to hold out")
    encoder = ChatEncoder(template, tokenizer)
    with new_folder(out, overwrite) as folder:
        splits: dict[Split, SplitInfo] = {}
        with progress("encoding", 2 * size_bytes, "bytes") as advance:
            for side in ("train", "validation"):
                rows = _rows(paths, encoder, limit, partial(holdout.holds, side), advance)
                splits[side] = write_side(folder, side, tokenizer, rows, {"mask": False, "roles": 0}, len(paths))
        if limit is not None:
            check_limit(limit, splits)
        settings = {
            CHAT: hash_of_files(paths),
            **template_settings(template, added),
            "validation": holdout.fraction,
            **({} if limit is None else limit.settings()),
            **({TEMPLATE_FINDINGS: told} if told else {}),
        }
        return describe_folder(folder, tokenizer, splits, sources, settings, layout="rows")


def template_settings(template: ChatTemplate, added: Sequence[str]) -> dict[str, Any]:
    """What a manifest says of the chat template, so that a model that is trained on the folder gets it."""
    names = {ADDED_TOKENS: list(added)} if added else {}
    return {"chat_template": template.source, SPECIAL_TOKENS: dict(template.special_tokens), **names}


def survey_files(
    paths: Sequence[Path],
    read: Callable[[Path, Advance], Iterator[Row]],
    about: Callable[[Row], tuple[bytes, Sequence[ChatTurn]]],
    rows: int = 1,
) -> tuple[Survey, list[SourceInfo]]:
    """What has to be known of files of rows before some are held out, and what is in each file.

    about: the identity of a row (`messages_identity`) and its messages. rows: that it becomes in a folder. Lines within
    messages that end in CRLF are told of.
    """
    survey, sources = Survey(), list[SourceInfo]()
    notes = list[str]()
    with progress("reading", sum(path.stat().st_size for path in paths), "bytes") as advance:
        for path in paths:
            before = survey.documents, survey.text_bytes
            lines = crlf_lines = 0
            for row in read(path, advance):
                identity, messages = about(row)
                contents = [turn.content or "" for turn in messages]
                survey.count(identity, sum(len(content.encode()) for content in contents))
                lines += sum(content.count("\n") for content in contents)
                crlf_lines += sum(content.count("\r\n") for content in contents)
            if crlf_lines:
                ends = f"{crlf_lines:,} of {lines:,} lines within messages end in CRLF"
                notes.append(f"{path}: {ends}, which stays as it is")
            documents, text_bytes = survey.documents - before[0], survey.text_bytes - before[1]
            sources.append(SourceInfo(file=str(path), documents=rows * documents, bytes=text_bytes))
    for line in notes:
        note(line)
    return survey, sources


def messages_identity(messages: Sequence[ChatTurn]) -> bytes:
    """Stands for messages: rows that begin with the same ones are on the same side."""
    return content_hash("\0".join(f"{turn.role}\0{turn.content}" for turn in messages))


def paths_of(files: Files) -> list[Path]:
    """One path or several, as a list."""
    return [Path(each) for each in ([files] if isinstance(files, str | Path) else files)]


def hash_of_files(files: Files) -> str | list[str]:
    """The SHA-256 of a file, or of each of several, in hexadecimal."""
    found = [sha256_of(path) for path in paths_of(files)]
    return found[0] if len(found) == 1 else found


def check_chat_template(files: Files, template: ChatTemplate, tokenizer: Tokenizer) -> list[str]:
    """Check a template on the first conversations of each file: `UserError` or a note for each check that fails.

    Returns the notes.
    """
    first = (islice(read_conversations(path), CHECKED_CONVERSATIONS) for path in paths_of(files))
    return check_findings(doctor(template, tokenizer, chain.from_iterable(first)), template)


def check_findings(
    findings: list[TemplateFinding], template: ChatTemplate, fatal: Collection[str] = FATAL
) -> list[str]:
    """`UserError` for a finding of a check without which nothing is trained; the others are told, and returned."""
    lines = []
    for finding in findings:
        if finding.check in fatal:
            advice = f"; {CHAT_TEMPLATE} in the model folder sets another template" if template.is_plain else ""
            raise UserError(f"{finding.place}: {template.origin}: {finding.check}: {finding.problem}{advice}")
        lines.append(f"{finding.place}: {template.origin}: {finding.check}: {finding.problem}")
        note(lines[-1])
    return lines


def check_limit(limit: LengthLimit, splits: Mapping[Split, SplitInfo]) -> None:
    """Tell what became of long conversations; `UserError` if they are refused, or a side has none left."""
    limit.check()
    for side, info in splits.items():
        if not info.documents:
            what = "prompt" if limit.answer else "conversation"
            problem = f"no {what} of the {side} split is short enough for the context of {limit.tokens} tokens"
            raise UserError(problem, field="long_conversations", value=limit.long, accepted="a longer context")
    if line := limit.describe():
        note(line)


def _rows(
    paths: list[Path],
    encoder: ChatEncoder,
    limit: LengthLimit | None,
    is_on_side: Callable[[bytes], bool],
    advance: Advance,
) -> Iterator[EncodedRow]:
    """The conversations of one side that are not left out."""
    for number, path in enumerate(paths):
        for conversation in read_conversations(path, advance):
            if is_on_side(_identity(conversation)):
                found = encoder.encode(conversation) if limit is None else limit.encode(encoder, conversation)
                if found is not None:
                    columns: dict[Part, Any] = {"mask": found.trained, "roles": role_numbers(conversation, found)}
                    yield EncodedRow(found.ids, columns, number)


def _identity(conversation: ChatConversation) -> bytes:
    """Stands for the messages in front of the first answer."""
    return messages_identity(conversation.messages[: conversation.answers[0]])
