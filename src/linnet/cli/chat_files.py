"""Options of `linnet prepare` for files of conversations, of pairs of answers, and of prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from linnet.cli.console import note
from linnet.cli.options import ChatTemplateFile, LongConversationsChoice, option
from linnet.core.errors import UserError
from linnet.core.files import check_file

if TYPE_CHECKING:
    from linnet.data.conversation_lengths import LengthLimit, LongConversations
    from linnet.data.shards import Manifest


@dataclass(frozen=True)
class ChatFileOptions:
    """Files of conversations, pairs of answers, or prompts, and how they are read."""

    chat: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of conversations instead of inputs, to train on the answers (repeatable)."),
    ] = None
    preferences: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of chosen and rejected answers instead of inputs (repeatable)."),
    ] = None
    prompts: Annotated[
        list[Path] | None,
        option("FILE", "A .jsonl file of prompts whose answers a checker judges, instead of inputs (repeatable)."),
    ] = None
    model: Annotated[
        Path | None,
        option("DIR", "With --chat, --preferences or --prompts: the model with tokenizer and chat template."),
    ] = None
    chat_template: ChatTemplateFile = None
    long_conversations: LongConversationsChoice = None
    max_tokens: Annotated[
        int | None,
        option(
            "N",
            "With --prompts and --long-conversations: the longest answer, beside which a prompt has to fit into the "
            "context. Default: 64, as that of training.grpo.max_tokens.",
            min=1,
        ),
    ] = None

    @property
    def files(self) -> dict[str, list[Path]]:
        """The files by kind, of the kinds that were given."""
        kinds = {"chat": self.chat, "preferences": self.preferences, "prompts": self.prompts}
        return {kind: files for kind, files in kinds.items() if files}

    @property
    def is_given(self) -> bool:
        """True if any of the options is; `UserError` for one without the file that it belongs to."""
        kinds = ("chat", "preferences", "prompts")
        for name, owners in (("chat_template", kinds), ("long_conversations", kinds), ("max_tokens", ("prompts",))):
            value = getattr(self, name)
            if value is not None and not set(self.files).intersection(owners):
                accepted = f"{' or '.join(f'--{each}' for each in owners)} beside it"
                raise UserError(field=name, value=value, accepted=accepted)
        if self.max_tokens is not None and self.long_conversations is None:
            raise UserError(field="max_tokens", value=self.max_tokens, accepted="--long-conversations beside it")
        return bool(self.files) or self.model is not None

    def chosen(self) -> tuple[str, list[Path], Path]:
        """The kind of the files, the files, and the model; `UserError` unless there is one of each."""
        for kind, files in list(self.files.items())[1:]:
            problem = f"cannot be combined with `{next(iter(self.files))}`; give one of the two"
            raise UserError(problem, field=kind, value=", ".join(map(str, files)))
        if not self.files:
            raise UserError(field="chat", accepted="it, --preferences or --prompts beside --model")
        ((kind, files),) = self.files.items()
        if self.model is None:
            raise UserError(field="model", accepted=f"it beside --{kind}")
        for file in files:
            check_file(file, kind, "a .jsonl file")
        return kind, files, self.model

    def prepare(self, out: Path, validation: float | None, overwrite: bool) -> "Manifest":
        """Prepare the files with the chat template and the tokenizer of the model."""
        from linnet.data.chat_setup import chat_setup
        from linnet.data.preferences import prepare_preferences
        from linnet.data.prepare_conversations import prepare_conversations
        from linnet.data.prepare_prompts import prepare_prompts
        from linnet.model.folder import PUBLISHED, model_folder

        kind, files, model = self.chosen()
        folder = model_folder(model)
        setup = chat_setup((folder, folder / PUBLISHED), self.chat_template)
        if line := setup.describe():
            note(line)
        limit = None if self.long_conversations is None else self._limit(kind, folder, self.long_conversations)
        common = (files, out, setup.template, setup.tokenizer, validation, overwrite)
        if kind == "prompts":
            return prepare_prompts(*common, added=setup.added, limit=limit)
        if kind == "preferences":
            return prepare_preferences(*common, added=setup.added, limit=limit)
        return prepare_conversations(*common, added=setup.added, limit=limit)

    def _limit(self, kind: str, folder: Path, long: "LongConversations") -> "LengthLimit":
        """Of the tokens of a row: the context of the model, for prompts less the longest answer."""
        from linnet.data.conversation_lengths import LengthLimit
        from linnet.model.folder import CONFIG
        from linnet.model.spec import ModelSpec

        context_length = ModelSpec.load(folder / CONFIG).context_length
        if kind != "prompts":
            return LengthLimit(context_length, long)
        from linnet.training.sections import GrpoSpec

        answer = GrpoSpec().max_tokens if self.max_tokens is None else self.max_tokens
        limit = LengthLimit(context_length, long, answer=answer)
        if answer >= context_length:
            accepted = f"less than the context of {context_length:,} tokens, so that a prompt fits"
            raise UserError(field="max_tokens", value=answer, accepted=accepted)
        return limit
