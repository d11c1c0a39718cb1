"""Everything a person sees: numbers, tables, plots, pages, progress bars. No other package draws."""
