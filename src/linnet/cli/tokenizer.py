"""`linnet tokenizer`: a tokenizer and the chat template beside it."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli.options import AsJson, option
from linnet.core.errors import UserError
from linnet.present.show import write, write_json, write_parts

tokenizer = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    help="""Look at a tokenizer and the chat template of its model.

    Example: linnet tokenizer doctor chat.jsonl --model runs/base
    """,
)


@tokenizer.callback()
def _group() -> None:
    """Make a group even of a single command."""


@tokenizer.command()
def doctor(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .jsonl file of conversations.")],
    *,
    model: Annotated[Path, option("DIR", "A model folder or a run, whose tokenizer and chat template are checked.")],
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many conversations to read. Default: all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a chat template on conversations: what would go wrong in training without a word.

    Example: linnet tokenizer doctor chat.jsonl --model runs/base

    The exit code is 1 if a check fails.
    """
    from dataclasses import asdict
    from itertools import islice

    from linnet.data.chat_template import ChatTemplate
    from linnet.data.conversations import read_conversations
    from linnet.data.template_doctor import CHECKS
    from linnet.data.template_doctor import doctor as check_template
    from linnet.data.tokenizer import TOKENIZER, Tokenizer
    from linnet.model.folder import PUBLISHED, model_folder
    from linnet.present.progress import progress
    from linnet.present.table import Table

    if not file.is_file():
        raise UserError(field="file", value=file, accepted="a .jsonl file of conversations")
    folder = model_folder(model)
    template = ChatTemplate.find(folder, folder / PUBLISHED)
    with progress("checking", file.stat().st_size, "bytes") as advance:
        conversations = islice(read_conversations(file, advance), limit)
        findings = check_template(template, Tokenizer.load(folder / TOKENIZER), conversations)
    if as_json:
        write_json({"template": template.origin, "findings": [asdict(finding) for finding in findings]})
    else:
        failed = {finding.check: finding for finding in findings}
        rows = [(check, f"{failed[check].conversations:,}" if check in failed else "0") for check in CHECKS]
        write(f"{template.origin}\n")
        write_parts(Table("", ("check", "conversations that fail"), rows))
        for finding in findings:
            write(f"{finding.check}: {finding.place}: {finding.problem}\n")
    if findings:
        raise typer.Exit(1)
