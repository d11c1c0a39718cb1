"""Files that a run prepares its data from, instead of a data folder: text, pairs, conversations, preferences, prompts.

Each kind of file is one entry of `KINDS`. The data folder of a run is `RUN/KIND`. It is made when the run begins; each
later start of the run is held to the same files and options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError, note
from linnet.core.files import check_file, sha256_of
from linnet.core.spec import read_yaml
from linnet.data.chat_setup import ChatSetup, chat_setup
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.corpus_tokenizer import load_tokenizer
from linnet.data.mixture import MIXTURE_SUFFIXES, MixtureSpec
from linnet.data.preferences import PREFERENCES, check_preference_template, prepare_preferences
from linnet.data.prepare import TEXT, prepare
from linnet.data.prepare_conversations import CHAT, check_chat_template, hash_of_files, prepare_conversations
from linnet.data.prepare_pairs import PAIRS, prepare_pairs
from linnet.data.prepare_prompts import PROMPTS, check_prompt_template, prepare_prompts
from linnet.data.prepare_tokens import has_token_files, prepare_token_files
from linnet.data.replay import check_replayed
from linnet.data.sources import HUGGING_FACE, STDIN, expand_inputs
from linnet.data.token_data import read_manifest
from linnet.data.token_files import expand_token_files, is_token_file
from linnet.data.tokenizer_training import fewest_tokens
from linnet.model.folder import PUBLISHED, TOKENIZER, model_folder
from linnet.training.sections import GrpoSpec
from linnet.training.spec import RunSpec

Paths = str | Path | Sequence[str | Path]

MOST_TEXT_BYTES = 100_000_000
"""Of the files that a run tokenizes when it begins: a minute's work for one processor."""

TOKENIZER_OF_TEXT = "tokenizer_of_text"


@dataclass(frozen=True)
class RunFiles:
    """The files that a run was given. kind: a name in `KINDS`. options: those of the kind that were given."""

    kind: str
    files: tuple[Path, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def data(self, out: str | Path) -> Path:
        """The data folder of the run `out`."""
        return Path(out) / self.kind

    @property
    def argument(self) -> str:
        """The argument that names the files."""
        return _argument_of(self.kind)


def _argument_of(kind: str) -> str:
    return "data" if kind == TEXT else kind


@dataclass(frozen=True)
class FileKind:
    """How a run uses one kind of file.

    prepare: makes the data folder `run.data`. settings: what its manifest has to say of files and options; a folder
    that says otherwise is refused. check: runs at each start of the run, before anything is made. options: the names of
    the options that the kind has. several: whether more than one file is accepted. needs_start: whether the run has to
    start from a model, whose tokenizer and chat template are used.
    """

    prepare: Callable[[RunSpec, RunFiles], None]
    settings: Callable[[RunSpec, RunFiles], dict[str, Any]]
    check: Callable[[RunSpec, RunFiles], None] = lambda run, files: None
    options: tuple[str, ...] = ()
    several: bool = False
    needs_start: bool = False


def given_files(by_kind: Mapping[str, Paths | None], options: Mapping[str, Any] | None = None) -> RunFiles | None:
    """The files of the kind that was given; None if none was.

    by_kind: the files by a name in `KINDS`. options: by name; None: not given. `UserError` for files of two kinds,
    a file that is missing, and an option of another kind.
    """
    given = {kind: files for kind, files in by_kind.items() if files}
    chosen = {name: value for name, value in (options or {}).items() if value is not None}
    kind = next(iter(given), None)
    for other in list(given)[1:]:
        problem = f"cannot be combined with `{_argument_of(kind or '')}`; give one of the two"
        raise UserError(problem, field=other, value=_shown(given[other]))
    for name, value in chosen.items():
        if kind is None or name not in KINDS[kind].options:
            owners = [f"`{_argument_of(each)}`" for each, entry in KINDS.items() if name in entry.options]
            of_text = ", a file of text," if name in KINDS[TEXT].options else ""
            raise UserError(field=name, value=value, accepted=f"{' or '.join(owners)}{of_text} beside it")
    if kind is None:
        return None
    files = given[kind]
    paths = tuple(map(Path, [files] if isinstance(files, str | Path) else files))
    if len(paths) > 1 and not KINDS[kind].several:
        raise UserError(field=kind, value=_shown(files), accepted="one file")
    for path in paths:
        check_file(path, kind, "a .jsonl file")
    return RunFiles(kind, paths, chosen)


def _shown(files: Paths) -> str:
    return str(files) if isinstance(files, str | Path) else ", ".join(map(str, files))


def prepare_run_files(run: RunSpec, given: RunFiles) -> None:
    """Make the data folder of a run from the files that it was given, unless it exists.

    `UserError` if the folder was made of other files or with other options.
    """
    kind = KINDS[given.kind]
    if run.training.replay is not None:
        check_replayed(run.training.replay.data)  # before the conversations are read
    kind.check(run, given)
    if not (run.data / MANIFEST).is_file():
        kind.prepare(run, given)
        return
    known = read_manifest(run.data).settings
    for name, value in kind.settings(run, given).items():
        if known.get(name) == value:
            continue
        if name == given.kind:
            problem = f"not the file that {run.data} was made from; choose another `out`"
            raise UserError(problem, field=given.argument, value=_shown(given.files))
        option = "tokenizer" if name == TOKENIZER_OF_TEXT else name
        raise UserError(f"{run.data} was made with another `{option}`; choose another `out`", field=given.argument)


def _prepare_pairs(run: RunSpec, given: RunFiles) -> None:
    """With the tokenizer of the model that the run starts from, or one that is as large as the model's vocabulary."""
    if run.start_from is None:
        prepare_pairs(given.files[0], run.data, "bpe", run.model.vocab_size)
    else:
        prepare_pairs(given.files[0], run.data, str(model_folder(run.start_from) / TOKENIZER))


def start_missing(given: RunFiles) -> UserError:
    """The error of a run whose files need a model to start from."""
    accepted = "`start_from` beside it: a model, whose tokenizer and chat template are used"
    return UserError(field=given.kind, value=_shown(given.files), accepted=accepted)


def _start_folders(run: RunSpec, given: RunFiles) -> tuple[Path, Path]:
    """The model folder that a run starts from, and its published files; `UserError` if it starts from none."""
    if run.start_from is None:
        raise start_missing(given)
    folder = model_folder(run.start_from)
    return folder, folder / PUBLISHED


def _chat_setup(run: RunSpec, given: RunFiles) -> ChatSetup:
    return chat_setup(_start_folders(run, given), given.options.get("chat_template"))


def _prepare_chat(run: RunSpec, given: RunFiles) -> None:
    setup, limit = _chat_setup(run, given), _length_limit(run, given)
    prepare_conversations(given.files, run.data, setup.template, setup.tokenizer, added=setup.added, limit=limit)


def _length_limit(run: RunSpec, given: RunFiles) -> LengthLimit:
    """Of the tokens of a conversation: the context that the run trains with."""
    tokens = run.training.context_length or run.model.context_length
    return LengthLimit(tokens, given.options.get("long_conversations", "refuse"))


def _check_chat(run: RunSpec, given: RunFiles) -> None:
    setup = _chat_setup(run, given)
    check_chat_template(given.files, setup.template, setup.tokenizer)
    _tell_setup(run, given)


def _chat_settings(run: RunSpec, given: RunFiles) -> dict[str, Any]:
    lengths = {"long_conversations": None, "context_length": None, **_length_limit(run, given).settings()}
    template = _chat_setup(run, given).template
    return {CHAT: hash_of_files(given.files), "chat_template": template.source, **lengths}


def _prepare_preferences(run: RunSpec, given: RunFiles) -> None:
    setup, limit = _chat_setup(run, given), _length_limit(run, given)
    prepare_preferences(
        given.files, run.data, setup.template, setup.tokenizer, checked=True, limit=limit, added=setup.added
    )


def _check_preferences(run: RunSpec, given: RunFiles) -> None:
    setup = _chat_setup(run, given)
    check_preference_template(given.files, setup.template, setup.tokenizer)
    _tell_setup(run, given)


def _preference_settings(run: RunSpec, given: RunFiles) -> dict[str, Any]:
    lengths = {"long_conversations": None, "context_length": None, **_length_limit(run, given).settings()}
    template = _chat_setup(run, given).template
    return {PREFERENCES: hash_of_files(given.files), "chat_template": template.source, **lengths}


def _prepare_prompts(run: RunSpec, given: RunFiles) -> None:
    setup, grpo = _chat_setup(run, given), run.training.grpo or GrpoSpec()
    prepare_prompts(
        given.files,
        run.data,
        setup.template,
        setup.tokenizer,
        added=setup.added,
        needs_checker=grpo.needs_checker,
        limit=_prompt_limit(run, given),
        checked=True,
    )


def _check_prompts(run: RunSpec, given: RunFiles) -> None:
    setup = _chat_setup(run, given)
    check_prompt_template(given.files, setup.template, setup.tokenizer)
    _tell_setup(run, given)


def _prompt_limit(run: RunSpec, given: RunFiles) -> LengthLimit:
    """Of the tokens of a prompt: the context that the run trains with, without room for the longest answer."""
    limit, grpo = _length_limit(run, given), run.training.grpo or GrpoSpec()
    grpo.check_room(limit.tokens)
    return LengthLimit(limit.tokens, limit.long, answer=grpo.max_tokens)


def _tell_setup(run: RunSpec, given: RunFiles) -> None:
    if line := _chat_setup(run, given).describe():
        note(line)


def _prompt_settings(run: RunSpec, given: RunFiles) -> dict[str, Any]:
    lengths = {"long_conversations": None, "context_length": None, **_prompt_limit(run, given).settings()}
    template = _chat_setup(run, given).template
    return {PROMPTS: hash_of_files(given.files), "chat_template": template.source, **lengths}


def text_of(data: str | Path | None, tokenizer: str | Path | None = None) -> Path | None:
    """What `data` names if it is a file of text, or a mixture.yaml of texts, and not a data folder.

    `UserError` if it names nothing, and a tokenizer says that it should be a text.
    """
    if data is not None and tokenizer is not None and not Path(data).exists():
        raise UserError("no such file", field="data", value=data)
    return Path(data) if data is not None and Path(data).is_file() else None


def mixture_of(given: RunFiles) -> MixtureSpec | None:
    """The mixture that a run was given as its text; None for a file of text, or another kind of file."""
    file = given.files[0]
    if given.kind != TEXT or file.suffix.lower() not in MIXTURE_SUFFIXES:
        return None
    return MixtureSpec.parse(read_yaml(file), str(file))


def _text_files(given: RunFiles) -> list[Path]:
    """The files of text of a run, in their order; `UserError` for what is no file, and for more than is small."""
    mixture = mixture_of(given)
    inputs = [str(given.files[0])]
    if mixture is not None:
        inputs = [each for source in mixture.sources.values() for each in source.inputs]
        inputs = expand_inputs(expand_token_files(inputs))
    files = [Path(name) for name in inputs]
    for file in files:
        if str(file) == STDIN or not file.is_file():
            accepted = "files; `linnet prepare` reads other inputs, whose folder is `data` then"
            elsewhere = str(file) == STDIN or str(file).startswith(HUGGING_FACE)
            problem = "" if elsewhere or file.exists() else "no such file"
            raise UserError(problem, field="data", value=f"{given.files[0]}: {file}", accepted=accepted)
    size_bytes = sum(file.stat().st_size for file in files)
    if size_bytes > MOST_TEXT_BYTES:
        problem = f"{size_bytes:,} bytes of text, more than the {MOST_TEXT_BYTES:,} that a run tokenizes when it begins"
        raise UserError(problem, field="data", value=given.files[0], accepted="what `linnet prepare` makes of it")
    return files


def _text_tokenizer(run: RunSpec, given: RunFiles) -> tuple[str, int | None]:
    """The tokenizer's kind or path, and the tokens to train: those of the model that the run starts from, or its own.

    Without one that is given, a new model gets a BPE as large as its vocabulary, or bytes if that is smaller.
    """
    chosen = given.options.get("tokenizer")
    if run.start_from is not None:
        if chosen is not None:
            raise UserError(field="tokenizer", value=chosen, accepted="none beside `start_from`, whose own is used")
        return str(model_folder(run.start_from) / TOKENIZER), None
    vocab_size = run.model.vocab_size
    kind = str(chosen or ("bpe" if vocab_size >= fewest_tokens("bpe") else "bytes"))
    return kind, vocab_size if kind in ("bpe", "unigram") else None


def _prepare_text(run: RunSpec, given: RunFiles) -> None:
    kind, vocab_size = _text_tokenizer(run, given)
    mixture = mixture_of(given)
    inputs = [] if mixture is not None else [str(given.files[0])]
    recorded = _text_settings(run, given)
    if is_token_file(str(given.files[0])) or (mixture is not None and has_token_files(mixture)):
        prepare_token_files(inputs, run.data, kind, mixture=mixture, recorded=recorded)
    else:
        fill = run.training.fill_in_the_middle
        if fill is not None:  # a tokenizer that is trained here gets its control tokens
            fill = fill.model_copy(update={"rate": 0.0})
        prepare(inputs, run.data, kind, vocab_size, mixture=mixture, fill_in_the_middle=fill, recorded=recorded)


def _text_settings(run: RunSpec, given: RunFiles) -> dict[str, Any]:
    """The hashes of the files and of the tokenizer, so that a run resumes wherever they are."""
    kind, _ = _text_tokenizer(run, given)
    ready = load_tokenizer(kind, None)
    hashes = [sha256_of(file) for file in _text_files(given)]
    return {TEXT: hashes, TOKENIZER_OF_TEXT: kind if ready is None else ready.hash}


KINDS: dict[str, FileKind] = {
    TEXT: FileKind(_prepare_text, _text_settings, options=("tokenizer",)),
    PAIRS: FileKind(_prepare_pairs, lambda run, given: {PAIRS: sha256_of(given.files[0])}),
    CHAT: FileKind(
        _prepare_chat,
        _chat_settings,
        _check_chat,
        ("chat_template", "long_conversations"),
        several=True,
        needs_start=True,
    ),
    PROMPTS: FileKind(
        _prepare_prompts,
        _prompt_settings,
        _check_prompts,
        ("chat_template", "long_conversations"),
        several=True,
        needs_start=True,
    ),
    PREFERENCES: FileKind(
        _prepare_preferences,
        _preference_settings,
        _check_preferences,
        ("chat_template", "long_conversations"),
        several=True,
        needs_start=True,
    ),
}
"""The kinds of files by name, which is that of the argument of `train` and of the folder in the run's."""
