"""A result as one HTML file that needs no other file and no network, for light and dark, wide and narrow screens."""

import html
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path

from linnet.core.atomic import atomic_path
from linnet.core.errors import printable
from linnet.core.files import write_text
from linnet.present.result import Commands, Facts, Paragraph, Part, Passage, Picture, Result
from linnet.present.style import PALETTE, png_of, svg_of
from linnet.present.table import Table, word_columns

PAGE = "report.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Keeps browsers from fetching anything."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf7; --card: #ffffff; --text: #22252a; --soft: #5d6570; --rule: #dfdcd4; --code: #f1efe9;
  --shadow: #0000004d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181c; --card: #1e2126; --text: #e4e5e7; --soft: #a1a8b3; --rule: #363b44; --code: #272b32;
    --shadow: #000000b3;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text); overflow-wrap: anywhere;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1100px; margin: 0 auto; padding: 28px 18px 56px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 1.2rem; margin: 40px 0 6px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 6px 0 12px; max-width: 74ch; }
.soft, figcaption, .note td { color: var(--soft); font-size: .88rem; line-height: 1.45; }
code, pre { font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
pre { margin: 4px 0 14px; padding: 10px 12px; background: var(--code); border-radius: 6px; white-space: pre-wrap; }
.cards { display: flex; flex-wrap: wrap; gap: 18px; margin: 18px 0; align-items: flex-start; }
.passages { display: grid; align-items: stretch; }
.passages { grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); }
.card, .table {
  margin: 0; max-width: 100%; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
}
.card { padding: 14px; }
img { display: block; max-width: 100%; height: auto; }
figcaption { margin-top: 8px; max-width: 74ch; contain: inline-size; }  /* the picture alone decides the width */
.passage { border-top: 3px solid; }
.passage .text { color: var(--text); font: 1.02rem/1.6 Georgia, "Times New Roman", serif; }
.passage .text p { margin: 0 0 .55em; }
.table { overflow-x: auto; width: fit-content; overflow-wrap: normal; }
.table {  /* shadows stand at the edges, covers move with the table: a shadow is seen where there is more behind it */
  background:
    linear-gradient(to right, var(--card) 18px, transparent) left / 22px 100% local no-repeat,
    linear-gradient(to left, var(--card) 18px, transparent) right / 22px 100% local no-repeat,
    linear-gradient(to right, var(--shadow), transparent) left / 18px 100% scroll no-repeat,
    linear-gradient(to left, var(--shadow), transparent) right / 18px 100% scroll no-repeat, var(--card);
}
.noted, .noted .figures { width: 100%; }
table { border-collapse: collapse; }
.figures th, .figures td { padding: 6px 12px; text-align: right; vertical-align: baseline; }
.figures thead th { padding: 10px 12px; border-bottom: 2px solid var(--rule); vertical-align: bottom; }
.figures th:first-child { position: sticky; left: 0; background: var(--card); }  /* a wide table scrolls behind it */
.figures th:first-child, .figures .words, .figures .note td { text-align: left; }
.figures tbody th { font-weight: 600; }
.figures .part th { padding-left: 28px; font-weight: 400; }
.figures tbody + tbody { border-top: 1px solid var(--rule); }
.value { font-variant-numeric: tabular-nums; white-space: nowrap; }
.value small, .words small { display: block; color: var(--soft); }
.value small { white-space: normal; max-width: 22ch; margin-left: auto; }
.note td { padding-top: 0; max-width: 0; }
.facts { font-size: .93rem; }
.facts th, .facts td { text-align: left; padding: 3px 18px 3px 0; vertical-align: baseline; }
.facts th { font-weight: 400; color: var(--soft); overflow-wrap: normal; }
@media (max-width: 560px) {
  main { padding: 20px 12px 40px; }
  .figures { font-size: .86rem; }
  .figures th, .figures td, .figures thead th { padding-left: 5px; padding-right: 5px; }
  .figures th:first-child { max-width: 38vw; }
  .note td { font-size: .8rem; }
  .card { padding: 12px 8px; }
}
""" + "".join(f".color{number} {{ color: {color}; }}\n" for number, color in enumerate(PALETTE))

_WORDS = ' class="words"'


def write_page(result: Result, folder: Path, command: str, made: str | None = None) -> Path:
    """Write report.html and each picture as PNG into the folder and return the page's path.

    command: the command line that produced the result. made: when, if not now. Each file appears whole or not at all.
    """
    parts = result.page()
    figures = {part.name: part.drawing.figure() for part in parts if isinstance(part, Picture)}
    for name, figure in figures.items():
        with atomic_path(folder / f"{name}.png") as temporary:
            temporary.write_bytes(png_of(figure))
    svgs = {name: svg_of(figure) for name, figure in figures.items()}
    write_text(folder / PAGE, page(result, parts, svgs, command, made or timestamp()))
    return folder / PAGE


def timestamp() -> str:
    """Return the present time as pages show it."""
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def page(result: Result, parts: Sequence[Part], svgs: Mapping[str, str], command: str, made: str) -> str:
    """Return the page's HTML. svgs: the pictures by their names."""
    head = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>linnet: {_escaped(result.title())}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{_escaped(result.title())}</h1>
<p class="soft">Made by <code>{_escaped(command)}</code>, {_escaped(made)}.</p>"""
    facts = _facts(Facts("", result.facts())) if result.facts() else []
    conclusion = [f"<p>{_escaped(result.conclusion())}</p>"] if result.conclusion() else []
    return "\n".join([head, *facts, *conclusion, *_parts(parts, svgs), "</main>\n</body>\n</html>\n"])


def _parts(parts: Sequence[Part], svgs: Mapping[str, str]) -> Iterator[str]:
    """Yield all parts in order; consecutive pictures or passages stand side by side where there is room."""
    for kind, group in groupby(parts, type):
        in_cards = kind in (Picture, Passage)
        if in_cards:
            yield f'<div class="cards{" passages" * (kind is Passage)}">'
        for part in group:
            match part:
                case Table():
                    yield from _table(part)
                case Picture():
                    data = b64encode(svgs[part.name].encode()).decode()
                    title = _escaped(part.title)
                    yield f'<figure class="card"><h3>{title}</h3>'
                    yield f'<img src="data:image/svg+xml;base64,{data}" alt="{title}">'
                    yield f"<figcaption>{_escaped(part.caption)}</figcaption></figure>"
                case Passage():
                    yield from _passage(part)
                case Facts():
                    yield from _facts(part)
                case Commands():
                    yield from _heading(part.title)
                    for purpose, lines in part.lines.items():
                        yield f"<p>{_escaped(purpose)}</p>\n<pre>{_escaped(chr(10).join(lines))}</pre>"
                case Paragraph():
                    yield from _heading(part.title, part.text)
        if in_cards:
            yield "</div>"


def _table(table: Table) -> Iterator[str]:
    yield from _heading(table.title, "" if table.notes else table.meaning, ' class="soft"')
    words = word_columns(table)
    heads = "".join(
        f'<th scope="col"{_WORDS if number in words else ""}>{_escaped(column)}</th>'
        for number, column in enumerate(table.columns)
    )
    head = f"<thead><tr>{heads}</tr></thead>\n" if any(table.columns) else ""
    yield f'<div class="table{" noted" if table.notes else ""}"><table class="figures">\n{head}<tbody>'
    for number, (name, *values) in enumerate(table.rows):
        is_part = name.startswith(" ")
        if number and not is_part:
            yield "</tbody><tbody>"
        cells = ""
        for column, value in enumerate(values, start=1):
            first, *others = map(_escaped, value.split("\n"))
            small = "".join(f"<small>{line}</small>" for line in others)  # the lines after the first
            cells += f'<td class="{"words" if column in words else "value"}">{first}{small}</td>'
        row = '<tr class="part">' if is_part else "<tr>"
        yield f'{row}<th scope="row">{_escaped(name)}</th>{cells}</tr>'
        if name in table.notes:
            yield f'<tr class="note"><td colspan="{len(table.columns)}">{_escaped(table.notes[name])}</td></tr>'
    yield "</tbody></table></div>"


def _passage(passage: Passage) -> Iterator[str]:
    """Yield the lines as paragraphs, with the prompt in bold."""
    yield f'<article class="card passage color{passage.color}"><h3>{_escaped(passage.title)}</h3>\n<div class="text">'
    prompt_left = len(passage.prompt)
    for line in (passage.prompt + passage.text).split("\n"):
        prompt, rest = _escaped(line[:prompt_left]), _escaped(line[prompt_left:])
        prompt_left = max(0, prompt_left - len(line) - 1)
        if line.strip():
            yield f"<p><b>{prompt}</b>{rest}</p>" if prompt else f"<p>{rest}</p>"
    yield "</div>"
    if passage.note:
        yield f'<p class="soft">{_escaped(passage.note)}</p>'
    yield "</article>"


def _facts(facts: Facts) -> Iterator[str]:
    yield from _heading(facts.title)
    yield '<table class="facts">'
    for name, fact in facts.facts.items():
        yield f'<tr><th scope="row">{_escaped(name)}</th><td>{_escaped(fact)}</td></tr>'
    yield "</table>"


def _heading(title: str, text: str = "", attributes: str = "") -> Iterator[str]:
    if title:
        yield f"<h2>{_escaped(title)}</h2>"
    if text:
        yield f"<p{attributes}>{_escaped(text)}</p>"


def _escaped(text: str) -> str:
    return html.escape(printable(text))
