"""A page: one HTML file that needs nothing else, neither files nor network; light and dark, wide and narrow."""

import html
from collections.abc import Iterable

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A browser that shows the page fetches nothing."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf7; --card: #ffffff; --text: #22252a; --soft: #5d6570; --rule: #dfdcd4; --code: #f1efe9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181c; --card: #1e2126; --text: #e4e5e7; --soft: #a1a8b3; --rule: #363b44; --code: #272b32;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1060px; margin: 0 auto; padding: 28px 18px 56px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 10px; }
h2 { font-size: 1.2rem; margin: 40px 0 6px; }
h3 { font-size: 1rem; margin: 0 0 6px; }
p { margin: 6px 0 12px; max-width: 74ch; }
.soft, figcaption, .meaning td, footer { color: var(--soft); font-size: .88rem; line-height: 1.45; }
table { border-collapse: collapse; width: 100%; background: var(--card); }
.figures { border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
.figures th, .figures td { padding: 9px 12px 0; text-align: right; vertical-align: baseline; }
.figures th:first-child { text-align: left; font-weight: 600; }
.figures thead th { padding: 10px 12px; border-bottom: 2px solid var(--rule); }
.figures tbody + tbody { border-top: 1px solid var(--rule); }
.figures .value { font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 0; padding: 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
figcaption { margin-top: 8px; }
.facts { width: auto; background: none; font-size: .93rem; }
.facts th, .facts td { text-align: left; padding: 3px 18px 3px 0; vertical-align: baseline; }
.facts th { font-weight: 400; color: var(--soft); white-space: nowrap; }
pre { margin: 4px 0 14px; padding: 10px 12px; background: var(--code); border-radius: 6px; overflow-x: auto;
  font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { margin-top: 40px; border-top: 1px solid var(--rule); padding-top: 10px; }
@media (max-width: 560px) {
  main { padding: 20px 12px 40px; }
  .figures th, .figures td, .figures thead th { padding-left: 5px; padding-right: 5px; }
  .figures { font-size: .86rem; }
  figure { padding: 12px 8px; }
}
"""
"""What every page looks like."""


def printable(text: str) -> str:
    """Text with U+FFFD for what a terminal might obey: a model that has learned little writes any byte."""
    return "".join(character if character.isprintable() or character == "\n" else "\ufffd" for character in text)


def escaped(text: str) -> str:
    """Printable text that a page shows and does not obey."""
    return html.escape(printable(text))


def html_page(title: str, body: Iterable[str], css: str = "") -> str:
    """The whole file. `title` is text, `body` lines of HTML; `css` comes after what every page has."""
    head = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{CSS}{css}</style>
</head>
<body>
<main>"""
    return "\n".join([head, *body, "</main>\n</body>\n</html>\n"])


def fact_table(facts: dict[str, str]) -> str:
    """Names and what there is to say of each."""
    rows = (f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(fact)}</td></tr>' for name, fact in facts.items())
    return "\n".join(['<table class="facts">', *rows, "</table>"])
