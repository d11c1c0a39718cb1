"""From token files of other programs (`token_files`) to a data folder, as `prepare` makes one from text.

A mixture may have sources of text beside them: these are encoded into token files without a name first, so that all
sources are read alike.
"""

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from linnet.core.atomic import errors_naming
from linnet.core.errors import UserError, note
from linnet.data.corpus_tokenizer import load_tokenizer
from linnet.data.data_folder import checked_target, describe_folder, new_folder
from linnet.data.mixture import MixtureSpec, SourceSpec, open_each_source
from linnet.data.prepare import mixture_to_prepare
from linnet.data.shards import SHARD_TOKENS, Manifest, ShardWriter, SourceInfo, SplitInfo, describe_runs, token_dtype
from linnet.data.sources import Source, describe_reading, open_sources
from linnet.data.split import Holdout, Split, Survey, check_fraction
from linnet.data.token_files import CHUNK_TOKENS, TokenFile, expand_token_files, is_token_file, open_token_file
from linnet.data.tokenizer import Tokenizer
from linnet.data.tokenizer_training import KINDS
from linnet.data.workers import batched_texts, computed_ahead
from linnet.present.progress import progress


class _Span(NamedTuple):
    """A document of a file, or a part of one: the file's number, and its tokens from `start` to before `stop`."""

    file: int
    start: int
    stop: int


def prepare_token_files(
    inputs: Sequence[str],
    out: str | Path,
    tokenizer: str,
    validation: float | None = None,
    overwrite: bool = False,
    shard_tokens: int = SHARD_TOKENS,
    end: Sequence[str] = (),
    mixture: str | Path | MixtureSpec | None = None,
    recorded: Mapping[str, Any] = MappingProxyType({}),
) -> Manifest:
    """Turn token files, or the sources of a mixture, into a data folder and return its manifest.

    tokenizer: the path of the tokenizer that made the files, whose end token divides documents; it encodes sources of
    text. validation: the fraction of the bytes of text to hold out, in whole documents, chosen by their tokens. The
    other arguments are those of `prepare.prepare`. `UserError` for a file that is truncated, or has ids that the
    tokenizer does not have.
    """
    mixed = None if mixture is None else mixture_to_prepare(mixture, inputs, None, None)
    _check_token_files(inputs)
    if tokenizer in KINDS:
        accepted = "the path of the tokenizer.json that the token files were made with"
        raise UserError(field="tokenizer", value=tokenizer, accepted=accepted)
    out = checked_target(out, overwrite)
    check_fraction(validation)
    encoder = load_tokenizer(tokenizer, None, end)
    assert encoder is not None, "no kind to train"
    with new_folder(out, overwrite) as folder, ExitStack() as stack:
        if mixed is None:
            files, names = _opened(inputs, encoder), None
        else:
            files, names = _open_mixture(stack, mixed, encoder)
        reader = _Reader(files, encoder, names)
        sources, holdout = reader.survey(validation)
        splits: dict[Split, SplitInfo] = {
            "train": reader.write(folder, "train", holdout, shard_tokens),
            "validation": reader.write(folder, "validation", holdout, shard_tokens),
        }
        settings = {
            "tokenizer": tokenizer,
            "token_files": {str(file.path): file.kind for file in files},
            "validation": holdout.fraction,
            "end": list(end),
            **({} if mixed is None else {"mixture": mixed.model_dump(mode="json")}),
            **recorded,
        }
        return describe_folder(folder, encoder, splits, sources, settings, layout="stream")


def has_token_files(mixture: MixtureSpec) -> bool:
    """True if a source of a mixture names token files, and no text alone."""
    return any(is_token_file(name) for spec in mixture.sources.values() for name in expand_token_files(spec.inputs))


def _check_token_files(names: Iterable[str]) -> None:
    for name in names:
        if not is_token_file(name):
            raise UserError(f"{name}: beside token files; expected token files alone (.bin, .idx, .ds)")


def _opened(names: Sequence[str], tokenizer: Tokenizer) -> list[TokenFile]:
    opened = [open_token_file(Path(name), tokenizer.vocab_size) for name in names]
    return list({file.path.resolve(): file for file in opened}.values())  # a .bin may be named with its .idx


def _open_mixture(stack: ExitStack, mixture: MixtureSpec, tokenizer: Tokenizer) -> tuple[list[TokenFile], list[str]]:
    """The files of a mixture's sources, one source after the other, and the name of each file's source."""

    def read(spec: SourceSpec) -> list[TokenFile]:
        inputs = expand_token_files(spec.inputs)
        if not any(map(is_token_file, inputs)):
            sources = open_sources(stack, spec.inputs, spec.field, spec.separator)
            opened = [_encoded(stack, source, tokenizer) for source in sources]
            for line in describe_reading(sources):
                note(line)
            return opened
        _check_token_files(inputs)
        for option in ("field", "separator"):
            if value := getattr(spec, option):
                raise UserError("token files have none", field=option, value=repr(value))
        return _opened(inputs, tokenizer)

    kinds = "files, folders or patterns of text, or token files"
    return open_each_source(mixture, kinds, read, lambda file: str(file.path))


def _encoded(stack: ExitStack, source: Source, tokenizer: Tokenizer) -> TokenFile:
    """The documents of a text as a token file that has no name, so that even a killed process leaves nothing."""
    dtype, counts = np.dtype(token_dtype(tokenizer.vocab_size)), array("q")
    place = Path(tempfile.gettempdir())
    with errors_naming(place):
        file = stack.enter_context(tempfile.TemporaryFile(dir=place))  # noqa: SIM115 - the stack closes it
    with progress("encoding", source.size_bytes, "bytes") as advance:
        for _, encoded in computed_ahead(tokenizer.encode_batch, batched_texts(source.documents(advance))):
            for ids in encoded:
                counts.append(len(ids))
                with errors_naming(place):
                    file.write(np.array(ids, dtype=dtype).tobytes())
    with errors_naming(place):
        file.flush()
    ends = np.cumsum(counts, dtype=np.int64)  # none of a file of a folder that is empty
    tokens = np.memmap(file, dtype, "r") if ends.any() else np.empty(0, dtype)
    return TokenFile(Path(source.name), "text", tokens, ends)


class _Reader:
    """Reads token files with the tokenizer that made them, in several passes. names: of their sources, one for each."""

    def __init__(
        self, files: Sequence[TokenFile], tokenizer: Tokenizer, names: Sequence[str | None] | None = None
    ) -> None:
        self._files, self._tokenizer, self._byte_counts = files, tokenizer, tokenizer.byte_counts()
        self._names = names or [None] * len(files)

    def survey(self, validation: float | None) -> tuple[list[SourceInfo], Holdout]:
        """Count the documents and their bytes of text, check all ids, and decide the split."""
        total, counts = Survey(), np.zeros((len(self._files), 2), dtype=np.int64)
        for span in self._spans("reading"):
            size_bytes = self._text_bytes(span)
            total.count(self._identity(span), size_bytes)
            counts[span.file] += 1, size_bytes
        sources = [
            SourceInfo(file=str(file.path), documents=documents, bytes=size_bytes, name=name)
            for file, name, (documents, size_bytes) in zip(self._files, self._names, counts.tolist(), strict=True)
        ]
        if not total.documents:
            raise UserError(f"{self._files[0].path}: no tokens but end tokens")
        holdout = total.holdout(validation)
        if holdout.held_out is None:
            end = self._tokenizer.token_name(self._tokenizer.end_id)
            note(
                f"{self._files[0].path} has no index and no end token {end} within: it is cut, and its end is held out"
            )
        return sources, holdout

    def write(self, folder: Path, split: Split, holdout: Holdout, shard_tokens: int) -> SplitInfo:
        """Write the shards of a side: the training side in the order of the files, the other in that of its hashes."""
        parts: Iterable[_Span] = (part for span in self._spans(split) for part in self._parts(span, split, holdout))
        if split == "validation":
            parts = sorted(parts, key=self._identity)
        end, runs, text_bytes = np.array([self._tokenizer.end_id]), list[tuple[int, int]](), 0
        with ShardWriter(folder, split, self._tokenizer.vocab_size, shard_tokens) as writer:
            for span in parts:
                writer.write(end, begins=True)
                for first in range(span.start, span.stop, CHUNK_TOKENS):
                    last = min(span.stop, first + CHUNK_TOKENS)
                    writer.write(self._files[span.file].tokens[first:last].astype(np.int64))
                text_bytes += self._text_bytes(span)
                if runs and runs[-1][0] == span.file:
                    runs[-1] = span.file, runs[-1][1] + 1
                else:
                    runs.append((span.file, 1))
            writer.write(end)
            return writer.info(text_bytes, describe_runs(runs) if len(self._files) > 1 else None)

    def _spans(self, label: str) -> Iterator[_Span]:
        """The documents of all files."""
        end_id, vocab_size = self._tokenizer.end_id, self._tokenizer.vocab_size
        with progress(label, sum(len(file.tokens) for file in self._files), "tokens") as advance:
            for number, file in enumerate(self._files):
                for start, stop in file.spans(end_id, vocab_size, advance):
                    yield _Span(number, start, stop)

    def _parts(self, span: _Span, split: Split, holdout: Holdout) -> Iterator[_Span]:
        """What of a document is on a side: all, nothing, or its beginning or end if there is no other document."""
        if holdout.held_out is not None:
            if holdout.side(self._identity(span)) == split:
                yield span
            return
        length = span.stop - span.start
        if length < 2:
            raise UserError(f"{self._files[span.file].path}: one token; nothing would be left to hold out")
        cut = span.start + min(length - 1, max(1, round(length * (1 - holdout.fraction))))
        yield span._replace(stop=cut) if split == "train" else span._replace(start=cut)

    def _text_bytes(self, span: _Span) -> int:
        """Bytes of the text that a document's tokens stand for."""
        total, before = 0, np.array([self._tokenizer.end_id])
        for first in range(span.start, span.stop, CHUNK_TOKENS):
            part = self._files[span.file].tokens[first : min(span.stop, first + CHUNK_TOKENS)].astype(np.int64)
            total += int(self._byte_counts.of(part, np.concatenate([before, part[:-1]])).sum())
            before = part[-1:]
        return total

    def _identity(self, span: _Span) -> bytes:
        """16 bytes that depend on a document's tokens alone."""
        found, tokens = blake2b(digest_size=16), self._files[span.file].tokens
        for first in range(span.start, span.stop, CHUNK_TOKENS):
            found.update(tokens[first : min(span.stop, first + CHUNK_TOKENS)].astype("<u4").tobytes())
        return found.digest()
