"""The style sheet of the demo's page: light and dark, wide and narrow."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf7; --card: #ffffff; --text: #22252a; --soft: #5d6570; --rule: #dfdcd4; --code: #f1efe9;
  --attention: #1f6fb5; --pldr: #c2570c; --ted: #11805a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16181c; --card: #1e2126; --text: #e4e5e7; --soft: #a1a8b3; --rule: #363b44; --code: #272b32;
    --attention: #6cb0ef; --pldr: #f0985a; --ted: #4fc99a;
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
.ideas { padding: 0; list-style: none; max-width: 74ch; }
.ideas li { margin: 5px 0; padding-left: 14px; border-left: 3px solid; }
.ideas li span { color: var(--text); }
.attention { color: var(--attention); } .pldr { color: var(--pldr); } .ted { color: var(--ted); }
table { border-collapse: collapse; width: 100%; background: var(--card); }
.figures { border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
.figures th, .figures td { padding: 9px 12px 0; text-align: right; vertical-align: baseline; }
.figures th:first-child { text-align: left; font-weight: 600; }
.figures thead th { padding: 10px 12px; border-bottom: 2px solid var(--rule); }
.figures tbody + tbody { border-top: 1px solid var(--rule); }
.figures .value { font-variant-numeric: tabular-nums; white-space: nowrap; }
.figures .value small { display: block; color: var(--soft); }
.figures .meaning td { padding: 1px 12px 9px; text-align: left; }
.charts, .stories { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.stories { grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); }
figure, .story { margin: 0; padding: 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.story { border-top: 3px solid; }
.story .text { color: var(--text); font: 1.02rem/1.6 Georgia, "Times New Roman", serif; }
.story .text p { margin: 0 0 .55em; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12.5px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--soft); }
svg text.label { font-weight: 600; fill: currentColor; }
svg .axes line { stroke: var(--rule); }
svg .line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
svg .line.training { stroke-width: 1.2; opacity: .6; }
svg .line.pldr.state { stroke-dasharray: 7 4; }
svg .dot { fill: currentColor; }
figcaption { margin-top: 8px; }
.facts { width: auto; background: none; font-size: .93rem; }
.facts th, .facts td { text-align: left; padding: 3px 18px 3px 0; vertical-align: baseline; }
.facts th { font-weight: 400; color: var(--soft); white-space: nowrap; }
.columns { display: grid; gap: 4px 40px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.columns { align-items: start; }
pre { margin: 4px 0 14px; padding: 10px 12px; background: var(--code); border-radius: 6px; overflow-x: auto;
  font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
footer { margin-top: 40px; border-top: 1px solid var(--rule); padding-top: 10px; }
@media (max-width: 560px) {
  .figures .value small { white-space: normal; }
  main { padding: 20px 12px 40px; }
  .figures th, .figures td, .figures thead th { padding-left: 5px; padding-right: 5px; }
  .figures { font-size: .86rem; }
  .figures .meaning td { padding: 1px 5px 8px; font-size: .8rem; }
  figure, .story { padding: 12px 8px; }
  svg text { font-size: 14.5px; }
}
"""
