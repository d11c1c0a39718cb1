"""Files that a run prepares its data from, instead of a data folder: pairs, conversations, preferences, prompts.

Each kind of file is one entry of `KINDS`. The data folder of a run is `RUN/KIND`. It is made when the run begins; each
later start of the run is held to the same files and options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnet.core.checksum import MANIFEST
from linnet.core.errors import UserError, note
from linnet.core.files import sha256_of
from linnet.data.chat_setup import ChatSetup, chat_setup
from linnet.data.conversation_lengths import LengthLimit
from linnet.data.preferences import PREFERENCES, check_preference_template, prepare_preferences
from linnet.data.prepare import PAIRS, prepare_pairs
from linnet.data.prepare_conversations import CHAT, check_chat_template, hash_of_files, prepare_conversations
from linnet.data.prepare_prompts import PROMPTS, prepare_prompts
from linnet.data.token_data import read_manifest
from linnet.model.folder import PUBLISHED, TOKENIZER, model_folder
from linnet.training.spec import RunSpec

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class RunFiles:
    """The files that a run was given. kind: a name in `KINDS`. options: those of the kind that were given."""

    kind: str
    files: tuple[Path, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def data(self, out: str | Path) -> Path:
        """The data folder of the run `out`."""
        return Path(out) / self.kind


@dataclass(frozen=True)
class FileKind:
    """How a run uses one kind of file.

    prepare: makes the data folder `run.data`. settings: what its manifest has to say of files and options; a folder
    that says otherwise is refused. check: runs at each start of the run, before anything is made. options: the names of
    the options that the kind has. several: whether more than one file is accepted.
    """

    prepare: Callable[[RunSpec, RunFiles], None]
    settings: Callable[[RunSpec, RunFiles], dict[str, Any]]
    check: Callable[[RunSpec, RunFiles], None] = lambda run, files: None
    options: tuple[str, ...] = ()
    several: bool = False


def given_files(by_kind: Mapping[str, Paths | None], options: Mapping[str, Any] | None = None) -> RunFiles | None:
    """The files of the kind that was given; None if none was.

    by_kind: the files by a name in `KINDS`. options: by name; None: not given. `UserError` for files of two kinds,
    a file that is missing, and an option of another kind.
    """
    given = {kind: files for kind, files in by_kind.items() if files}
    chosen = {name: value for name, value in (options or {}).items() if value is not None}
    kind = next(iter(given), None)
    for other in list(given)[1:]:
        raise UserError(
            f"cannot be combined with `{kind}`; give one of the two", field=other, value=_shown(given[other])
        )
    for name, value in chosen.items():
        if kind is None or name not in KINDS[kind].options:
            owners = " or ".join(f"`{each}`" for each, entry in KINDS.items() if name in entry.options)
            raise UserError(field=name, value=value, accepted=f"{owners} beside it")
    if kind is None:
        return None
    files = given[kind]
    paths = tuple(map(Path, [files] if isinstance(files, str | Path) else files))
    if len(paths) > 1 and not KINDS[kind].several:
        raise UserError(field=kind, value=_shown(files), accepted="one file")
    for path in paths:
        if not path.is_file():
            raise UserError(field=kind, value=path, accepted="a .jsonl file")
    return RunFiles(kind, paths, chosen)


def _shown(files: Paths) -> str:
    return str(files) if isinstance(files, str | Path) else ", ".join(map(str, files))


def prepare_run_files(run: RunSpec, given: RunFiles) -> None:
    """Make the data folder of a run from the files that it was given, unless it exists.

    `UserError` if the folder was made of other files or with other options.
    """
    kind = KINDS[given.kind]
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
            raise UserError(problem, field=given.kind, value=_shown(given.files))
        raise UserError(f"{run.data} was made with another `{name}`; choose another `out`", field=given.kind)


def _prepare_pairs(run: RunSpec, given: RunFiles) -> None:
    """With the tokenizer of the model that the run starts from, or one that is as large as the model's vocabulary."""
    if run.start_from is None:
        prepare_pairs(given.files[0], run.data, "bpe", run.model.vocab_size)
    else:
        prepare_pairs(given.files[0], run.data, str(model_folder(run.start_from) / TOKENIZER))


def _start_folders(run: RunSpec, given: RunFiles) -> tuple[Path, Path]:
    """The model folder that a run starts from, and its published files; `UserError` if it starts from none."""
    if run.start_from is None:
        accepted = "`start_from` beside it: a model, whose tokenizer and chat template are used"
        raise UserError(field=given.kind, value=_shown(given.files), accepted=accepted)
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
    setup, grpo = _chat_setup(run, given), run.training.grpo
    needs_checker = grpo is None or grpo.reward is None or grpo.checker_weight > 0
    prepare_prompts(
        given.files, run.data, setup.template, setup.tokenizer, added=setup.added, needs_checker=needs_checker
    )


def _tell_setup(run: RunSpec, given: RunFiles) -> None:
    if line := _chat_setup(run, given).describe():
        note(line)


def _prompt_settings(run: RunSpec, given: RunFiles) -> dict[str, Any]:
    return {PROMPTS: hash_of_files(given.files), "chat_template": _chat_setup(run, given).template.source}


KINDS: dict[str, FileKind] = {
    PAIRS: FileKind(_prepare_pairs, lambda run, given: {PAIRS: sha256_of(given.files[0])}),
    CHAT: FileKind(_prepare_chat, _chat_settings, _check_chat, ("chat_template", "long_conversations"), several=True),
    PROMPTS: FileKind(_prepare_prompts, _prompt_settings, _tell_setup, ("chat_template",), several=True),
    PREFERENCES: FileKind(
        _prepare_preferences,
        _preference_settings,
        _check_preferences,
        ("chat_template", "long_conversations"),
        several=True,
    ),
}
"""The kinds of files by name, which is that of the argument of `train` and of the folder in the run's."""
