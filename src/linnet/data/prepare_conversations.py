"""From a file of conversations to a data folder: rows of tokens, of which those that a model is to write count."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from linnet.core.errors import UserError, note
from linnet.core.files import sha256_of
from linnet.data.chat_template import CHAT_TEMPLATE, ChatTemplate
from linnet.data.chat_tokens import ChatEncoder
from linnet.data.conversations import ChatConversation, read_conversations
from linnet.data.prepare import checked_target, describe_folder, new_folder
from linnet.data.shards import Manifest, Part, ShardWriter, SourceInfo, SplitInfo
from linnet.data.split import Holdout, Split, Survey, check_fraction, content_hash
from linnet.data.target_weights import role_numbers
from linnet.data.template_doctor import FATAL, doctor
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import Advance, progress

CHECKED_CONVERSATIONS = 200
"""How many conversations, from the first on, the template is checked on before any is prepared."""


def prepare_conversations(
    path: str | Path,
    out: str | Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    validation: float | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Turn a file of conversations (`read_conversations`) into a data folder of rows, and return its manifest.

    A row is one conversation, of which the answers and the stop tokens after them count in the loss; the role of each
    token is kept beside them (`target_weights`). Conversations
    that begin with the same messages up to the first answer are on the same side. validation: the fraction of the bytes
    to hold out. `UserError` for a template without a stop token after every answer (`template_doctor`); what else the
    checks find is told.
    """
    path, out = Path(path), checked_target(out, overwrite)
    check_fraction(validation)
    check_chat_template(path, template, tokenizer)
    survey, count, text_bytes = Survey(), 0, 0
    with progress("reading", path.stat().st_size, "bytes") as advance:
        for conversation in read_conversations(path, advance):
            size = sum(len((turn.content or "").encode()) for turn in conversation.messages)
            survey.count(_identity(conversation), size)
            count, text_bytes = count + 1, text_bytes + size
    holdout = survey.holdout(validation)
    if holdout.held_out is None:
        raise UserError(f"{path}: all conversations begin with the same messages; expected others to hold out")
    encoder = ChatEncoder(template, tokenizer)
    with new_folder(out, overwrite) as folder:
        splits: dict[Split, SplitInfo] = {}
        with progress("encoding", 2 * path.stat().st_size, "bytes") as advance:
            for side in ("train", "validation"):
                splits[side] = _write_side(folder, side, path, holdout, encoder, advance)
        settings = {"chat": sha256_of(path), "chat_template": template.source, "validation": holdout.fraction}
        source = SourceInfo(file=str(path), documents=count, bytes=text_bytes)
        return describe_folder(folder, tokenizer, splits, [source], settings, layout="rows")


def check_chat_template(path: Path, template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Check a template on the first conversations of a file: `UserError` or a note for each check that fails."""
    findings = doctor(template, tokenizer, islice(read_conversations(path), CHECKED_CONVERSATIONS))
    for finding in findings:
        if finding.check in FATAL:
            advice = f"; {CHAT_TEMPLATE} in the model folder sets another template" if template.is_plain else ""
            raise UserError(f"{finding.place}: {template.origin}: {finding.check}: {finding.problem}{advice}")
        note(f"{finding.place}: {template.origin}: {finding.check}: {finding.problem}")


def _write_side(
    folder: Path, side: Split, path: Path, holdout: Holdout, encoder: ChatEncoder, advance: Advance
) -> SplitInfo:
    """Write the conversations of one side, one after the other."""
    tokenizer, text_bytes = encoder.tokenizer, 0
    byte_counts = tokenizer.byte_counts()
    with ShardWriter(folder, side, tokenizer.vocab_size, parts=("mask", "roles")) as writer:
        for conversation in read_conversations(path, advance):
            if holdout.side(_identity(conversation)) == side:
                found = encoder.encode(conversation)
                ids_T = np.array(found.ids)
                columns: dict[Part, Any] = {"mask": np.array(found.trained), "roles": role_numbers(conversation, found)}
                writer.write(ids_T, columns, begins=True)
                text_bytes += int(byte_counts.of(ids_T[1:], ids_T[:-1]).sum())
        writer.write(np.array([tokenizer.end_id]), {"mask": np.array([False]), "roles": np.array([0])})
        return writer.info(text_bytes)


def _identity(conversation: ChatConversation) -> bytes:
    """Stands for the messages in front of the first answer."""
    asked = conversation.messages[: conversation.answers[0]]
    return content_hash("\0".join(f"{turn.role}\0{turn.content}" for turn in asked))
