r"""Preferences: pairs of answers to one prompt, of which people or a checker prefer the first.

    {"prompt": "...", "chosen": "...", "rejected": "..."}                    texts: one question, two answers
    {"prompt": [messages], "chosen": [messages], "rejected": [messages]}     as TRL writes conversations
    {"chosen": [messages], "rejected": [messages]}                           two conversations with the same beginning
    {"chosen": "\n\nHuman: ...", "rejected": "\n\nHuman: ..."}                  two transcripts (Anthropic's HH)

Each answer is encoded behind the prompt like a conversation (`data.chat_tokens`): what the template prints for it and
the stop token behind it count, the prompt does not. In a data folder the two are rows one after the other.

Legend: `D` rows, `P` pairs.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from linnet.core.errors import UserError
from linnet.data.chat_template import ChatTemplate
from linnet.data.chat_tokens import ChatEncoder, ChatTokens
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.conversations import (
    ASSISTANT,
    ChatConversation,
    ChatTurn,
    parse_messages,
    parse_object,
    parse_variables,
    read_objects,
    text_field,
)
from linnet.data.data_folder import EncodedRow, checked_target, describe_folder, new_folder, write_side
from linnet.data.loader import Batch, Batches, Spans
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
from linnet.data.shards import Manifest, SplitInfo, TokenSequence
from linnet.data.split import Split, check_fraction
from linnet.data.template_doctor import doctor
from linnet.data.tokenizer import Tokenizer
from linnet.present.progress import Advance, progress

PREFERENCES = "preferences"
"""In the settings of a manifest: the hash of the files that the folder was made of."""

CHOSEN, REJECTED, PROMPT = "chosen", "rejected", "prompt"

_EXAMPLE = json.dumps({PROMPT: "...", CHOSEN: "...", REJECTED: "..."})
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
_SPEAKERS = {"Human": "user", "Assistant": ASSISTANT}


@dataclass(frozen=True)
class PreferencePair:
    """Two conversations that begin with the same `prompt` messages; the rest of each is the answer."""

    chosen: ChatConversation
    rejected: ChatConversation
    prompt: int


def read_preferences(path: str | Path, advance: Advance = lambda *_: None) -> Iterator[PreferencePair]:
    """Read a .jsonl file of pairs, which may be compressed, as a stream.

    advance: gets the number of bytes that were read. `UserError` names the file, the line and the field of what is
    wrong, and a file without any pair.
    """
    for place, line in read_objects(path, "preferences", _EXAMPLE, advance):
        yield parse_preference(line, place)


def parse_preference(line: str, place: str) -> PreferencePair:
    """Read a pair from the JSON text of one line; `place` names the line in errors."""
    row = parse_object(line, place, _EXAMPLE)
    missing = [name for name in (CHOSEN, REJECTED) if name not in row]
    if missing:
        there = ", ".join(map(repr, row)) or "nothing"
        raise UserError(f"{place}: field {missing[0]!r}: missing; there is {there}; expected {_EXAMPLE}")
    given = () if PROMPT not in row else _turns(row, PROMPT, place, "user")
    chosen, rejected = (given + _turns(row, name, place, ASSISTANT if given else None) for name in (CHOSEN, REJECTED))
    prompt = len(given) or _shared(chosen, rejected)
    for name, turns in ((CHOSEN, chosen), (REJECTED, rejected)):
        problem = "no message before the answers" if prompt == 0 else "no answer behind the prompt"
        if prompt == 0 or len(turns) == prompt or turns[-1].role != ASSISTANT:
            raise UserError(f"{place}: field {name!r}: {problem}; expected a prompt, then an answer of the assistant")
    if chosen == rejected:
        raise UserError(f"{place}: field {REJECTED!r}: the same as {CHOSEN!r}; expected another answer")
    variables = parse_variables(row, place)
    whole = (ChatConversation(turns, place, variables) for turns in (chosen, rejected))
    return PreferencePair(next(whole), next(whole), prompt)


def _turns(row: dict[str, Any], field: str, place: str, role: str | None) -> tuple[ChatTurn, ...]:
    """The messages of a field: a list, one text of `role`, or where that is None a transcript."""
    if isinstance(row[field], list):
        return parse_messages(row, place, field)
    text = text_field(row, field, "", place)
    if not text.strip():
        raise UserError(f"{place}: field {field!r}: empty; expected some text")
    if role is not None:
        return (ChatTurn(role, text),)
    before, *parts = _TURN.split(text)
    if before.strip() or not parts:
        accepted = f"a field {PROMPT!r} beside it, messages, or a transcript (\\n\\nHuman: ...\\n\\nAssistant: ...)"
        raise UserError(f"{place}: field {field!r}: {json.dumps(text[:40])}: expected {accepted}")
    return tuple(ChatTurn(_SPEAKERS[name], said.strip()) for name, said in zip(parts[::2], parts[1::2], strict=True))


def _shared(chosen: Sequence[ChatTurn], rejected: Sequence[ChatTurn]) -> int:
    """The number of messages with which both begin, so that the answer of each is the last message at least."""
    longest = min(len(chosen), len(rejected)) - 1
    same = (number for number in range(longest) if chosen[number] != rejected[number])
    return next(same, max(0, longest))


class PreferenceEncoder:
    """Encodes pairs so that both answers stand behind the same tokens, which do not count."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._encoder = ChatEncoder(template, tokenizer)
        self.tokenizer = self._encoder.tokenizer

    def encode(self, pair: PreferencePair) -> tuple[ChatTokens, ChatTokens]:
        """Both rows; `UserError` if an answer has no token, or the tokens of the prompt differ."""
        chosen, rejected = (self._row(each, pair.prompt) for each in (pair.chosen, pair.rejected))
        starts = [each.trained.index(True) for each in (chosen, rejected)]
        if chosen.ids[: starts[0]] != rejected.ids[: starts[1]]:
            problem = "the prompt has other tokens in front of the chosen answer than in front of the rejected one"
            raise UserError(f"{pair.chosen.place}: {problem}; expected a template that prints it the same")
        return chosen, rejected

    def _row(self, conversation: ChatConversation, prompt: int) -> ChatTokens:
        found = self._encoder.encode(conversation)
        answers = [number >= prompt for number in conversation.answers]
        trained = [False] * len(found.ids)
        for (start, stop), is_answer in zip(found.spans, answers, strict=False):
            trained[start:stop] = [of and is_answer for of in found.trained[start:stop]]
        if not any(trained):
            raise UserError(f"{conversation.place}: an answer has no token of its own; expected some text in it")
        return replace(found, trained=trained)


def prepare_preferences(
    files: Files,
    out: str | Path,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    validation: float | None = None,
    overwrite: bool = False,
    checked: bool = False,
    limit: LengthLimit | None = None,
    added: Sequence[str] = (),
) -> Manifest:
    """Turn files of preferences into a data folder, and return its manifest.

    Pairs with the same prompt are on the same side. checked: the template has been checked already. limit: of the
    tokens of each answer with its prompt; pairs are refused or dropped, and never cut. The other arguments are those of
    `prepare_conversations`.
    """
    if limit is not None:
        limit = replace(limit, pairs=True)
    paths, out = paths_of(files), checked_target(out, overwrite)
    check_fraction(validation)
    if not checked:
        check_preference_template(paths, template, tokenizer)
    size_bytes = sum(path.stat().st_size for path in paths)

    def about(pair: PreferencePair) -> tuple[bytes, Sequence[ChatTurn]]:
        return _identity(pair), (*pair.chosen.messages, *pair.rejected.messages)

    survey, sources = survey_files(paths, read_preferences, about, rows=2)
    holdout = survey.holdout(validation)
    if holdout.held_out is None:
        raise UserError(f"{', '.join(map(str, paths))}: all pairs have the same prompt; expected others to hold out")
    encoder = PreferenceEncoder(template, tokenizer)
    with new_folder(out, overwrite) as folder:
        splits: dict[Split, SplitInfo] = {}
        with progress("encoding", 2 * size_bytes, "bytes") as advance:
            for side in ("train", "validation"):
                rows = _rows(paths, encoder, limit, partial(holdout.holds, side), advance)
                splits[side] = write_side(folder, side, tokenizer, rows, {"mask": False})
        if limit is not None:
            check_limit(limit, splits)
        settings = {
            PREFERENCES: hash_of_files(paths),
            **template_settings(template, added),
            "validation": holdout.fraction,
            **({} if limit is None else limit.settings()),
        }
        return describe_folder(folder, tokenizer, splits, sources, settings, layout="preferences")


def check_preference_template(files: Files, template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Check a template on the first chosen answers of each file: `UserError` or a note for each check that fails."""
    first = (pair.chosen for path in paths_of(files) for pair in islice(read_preferences(path), CHECKED_CONVERSATIONS))
    check_findings(doctor(template, tokenizer, first), template)


def _rows(
    paths: list[Path],
    encoder: PreferenceEncoder,
    limit: LengthLimit | None,
    is_on_side: Callable[[bytes], bool],
    advance: Advance,
) -> Iterator[EncodedRow]:
    """The two rows of each pair of one side that is not left out."""
    for pair in (pair for path in paths for pair in read_preferences(path, advance)):
        if not is_on_side(_identity(pair)):
            continue
        both = encoder.encode(pair)
        if limit is not None and not limit.fits(max(len(row.ids) for row in both), pair.chosen.place):
            limit.dropped += 1
            continue
        yield from (EncodedRow(row.ids, {"mask": row.trained}) for row in both)


def _identity(pair: PreferencePair) -> bytes:
    """Stands for the messages in front of the answers."""
    return messages_identity(pair.chosen.messages[: pair.prompt])


class PreferenceBatches:
    """An endless sequence of batches of pairs, each computed from its number and the seed alone.

    Row `2p` of the sequence is the chosen answer of pair `p`, row `2p + 1` the rejected one, and so they stand in a
    batch. An epoch is all pairs in a random order.
    """

    counted_share = 1.0

    def __init__(
        self, sequence: TokenSequence, rows: Spans, batch_size: int, context_length: int, seed: int, apart: bool
    ) -> None:
        """apart: batches say where what fills a row up begins, for layers that see later tokens."""
        assert len(rows) % 2 == 0 and rows.rows, "a chosen and a rejected row of each pair"
        self.sequence, self.batch_size, self.context_length = sequence, batch_size, context_length
        self.rows, self.apart = rows, apart
        self.extras_D: Mapping[str, Tensor] = {}
        """What each row has besides, `[D]`, for `Batch.extras`."""
        numbers_P = np.arange(len(rows) // 2)
        pairs = Spans(numbers_P, np.ones_like(numbers_P), np.ones_like(numbers_P), rows=True)
        self._order = Batches(sequence, batch_size, context_length, seed, pairs)

    @property
    def tokens_per_batch(self) -> int:
        """Places of a batch at most, of both rows of each pair."""
        return 2 * self.batch_size * self.context_length

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """The mean number of targets of a pair that do not count, and that count."""
        lengths, counts = (2 * float(each.mean()) for each in (self.rows.lengths_N, self.rows.counts_N))
        return lengths - counts, counts

    def batch(self, number: int) -> Batch:
        """Batch `number`, from 0."""
        first = number * self.batch_size
        places = (divmod(each, self._order.examples_per_epoch) for each in range(first, first + self.batch_size))
        return self.pairs([int(self._order.epoch(epoch)[0][place]) for epoch, place in places])

    def pairs(self, numbers: Sequence[int]) -> Batch:
        """The pairs of these numbers as a batch."""
        rows = [row for number in numbers for row in (2 * number, 2 * number + 1)]
        batch = self.rows.read(self.sequence, rows, self.apart)
        extras = {name: values_D[rows] for name, values_D in self.extras_D.items()}
        return replace(batch, extras=extras, rows_per_example=2, mean_over_examples=True)
