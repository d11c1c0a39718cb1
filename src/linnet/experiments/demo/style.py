"""The style sheet of the demo's page, beside what every page has."""

CSS = """
:root { --attention: #1f6fb5; --pldr: #c2570c; --ted: #11805a; }
@media (prefers-color-scheme: dark) {
  :root { --attention: #6cb0ef; --pldr: #f0985a; --ted: #4fc99a; }
}
.ideas { padding: 0; list-style: none; max-width: 74ch; }
.ideas li { margin: 5px 0; padding-left: 14px; border-left: 3px solid; }
.ideas li span { color: var(--text); }
.attention { color: var(--attention); } .pldr { color: var(--pldr); } .ted { color: var(--ted); }
.figures .value small { display: block; color: var(--soft); }
.figures .meaning td { padding: 1px 12px 9px; text-align: left; }
.charts, .stories { display: grid; gap: 18px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
.stories { grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); }
.story { padding: 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
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
.columns { display: grid; gap: 4px 40px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
.columns { align-items: start; }
@media (max-width: 560px) {
  .figures .value small { white-space: normal; }
  .figures .meaning td { padding: 1px 5px 8px; font-size: .8rem; }
  .story { padding: 12px 8px; }
  svg text { font-size: 14.5px; }
}
"""
