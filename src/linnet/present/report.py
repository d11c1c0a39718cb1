"""What was found, as tables and pictures: on one page, as files, and as rows for a terminal."""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from linnet.core.files import atomic_path, write_text
from linnet.present.page import escaped, fact_table, html_page

PAGE = "report.html"
CSS = """
main { max-width: 1500px; }
figure { margin: 18px 0; overflow-x: auto; width: fit-content; max-width: 100%; }
img { display: block; max-width: 100%; height: auto; background: #fff; }
figcaption { max-width: 74ch; }
.table { overflow-x: auto; }
.figures { width: auto; }
.figures td, .figures tbody th { padding-top: 6px; padding-bottom: 6px; }
.figures tbody th { white-space: nowrap; }
.figures.text td, .figures.text th { text-align: left; }
.figures.text .value { white-space: normal; }
.figures .part th { padding-left: 28px; font-weight: 400; }
.figures .part + tr:not(.part) { border-top: 1px solid var(--rule); }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, one that begins with a blank being a part of the row above.

    `meaning`: what to look for, a line or two. `text`: the cells are words, which begin at the left, not figures.
    Where all `columns` are empty there is no head.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str
    text: bool = False


@dataclass(frozen=True)
class Picture:
    """A PNG; `name` is its file's, without the suffix. `caption`: what can be seen, and what to look for."""

    name: str
    title: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Report:
    """One answer. `facts`: what it is about; `invocation`: the command line; `conclusion`: what follows."""

    title: str
    facts: dict[str, str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    invocation: str
    conclusion: str = ""


def write_report(report: Report, folder: Path) -> Path:
    """Write the pictures, and the page with all of them in it; each file appears whole or not at all."""
    for picture in report.pictures:
        with atomic_path(folder / f"{picture.name}.png") as temporary:
            temporary.write_bytes(picture.png)
    write_text(folder / PAGE, page(report))
    return folder / PAGE


def page(report: Report) -> str:
    """The whole page; it needs no other file."""
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    parts = [f"<h1>{escaped(report.title)}</h1>", fact_table(report.facts)]
    if report.conclusion:
        parts.append(f"<p>{escaped(report.conclusion)}</p>")
    for table in report.tables:
        parts += _table(table)
    for picture in report.pictures:
        parts += _picture(picture)
    footer = f"<footer>Made by <code>{escaped(report.invocation)}</code>, {escaped(made)}.</footer>"
    return html_page(f"linnet: {report.title}", [*parts, footer], CSS)


def _table(table: Table) -> Iterator[str]:
    yield f'<h2>{escaped(table.title)}</h2>\n<p class="soft">{escaped(table.meaning)}</p>\n<div class="table">'
    heads = "".join(f'<th scope="col">{escaped(column)}</th>' for column in table.columns)
    head = f"<thead><tr>{heads}</tr></thead>\n" if any(table.columns) else ""
    yield f'<table class="{"figures text" if table.text else "figures"}">\n{head}<tbody>'
    for name, *values in table.rows:
        cells = "".join(f'<td class="value">{escaped(value)}</td>' for value in values)
        part = ' class="part"' if name.startswith(" ") else ""
        yield f'<tr{part}><th scope="row">{escaped(name)}</th>{cells}</tr>'
    yield "</tbody></table></div>"


def _picture(picture: Picture) -> Iterator[str]:
    data = b64encode(picture.png).decode()
    yield f"<h2>{escaped(picture.title)}</h2>\n<figure>"
    yield f'<img src="data:image/png;base64,{data}" alt="{escaped(picture.title)}">'
    yield f"<figcaption>{escaped(picture.caption)}</figcaption></figure>"
