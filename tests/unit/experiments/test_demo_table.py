"""The demo's table, for a page and for a terminal."""

from example_figures import figures

from linnet.experiments.demo_report import demo_table
from linnet.present.table import table_lines


def test_60_columns_hold_every_figure():
    lines = table_lines(demo_table(figures(), ratios=False), 60)
    assert max(map(len, lines)) <= 60
    assert [" ".join(line.split()) for line in lines] == [
        "attention PLDR-LLM TED",
        "parameters 1.08 M 1.21 M 1.07 M",
        "bits per byte 0.779 0.803 0.731",
        "leak none +0.031 none",
        "name recall – 64% 10%",
        "training, tokens/s 14,322 11,538 16,820",
        "decoding, tokens/s 905 841 1,012",
        "state at 1k tokens 4 MiB 4.06 MiB 2.02 MiB",
        "state at 64k tokens 256 MiB 256 MiB 129 MiB",
        "with policy, 1k – – 117 KiB (bank)",
        "with policy, 64k – – 135 KiB (bank)",
    ]


def test_a_page_has_the_ratios_to_the_first_model_and_what_each_row_means():
    table = demo_table(figures(), ratios=True)
    rows = {name: cells for name, *cells in table.rows}
    assert rows["training, tokens/s"] == ["14,322", "11,538\n0.81 × attention", "16,820\n1.2 × attention"]
    assert rows["state at 64k tokens"][2] == "129 MiB\n0.50 × attention" and rows["leak"][1] == "+0.031"
    assert set(table.notes) == set(rows) - {"state at 1k tokens", "with policy, 1k"}, (
        "two lengths of the same are explained once"
    )
    assert "median of 5 runs of 200 sampled tokens" in table.notes["decoding, tokens/s"]
    assert "one in 9 by chance" in table.notes["name recall"]
    assert "needs 1.877 here" in table.notes["bits per byte"] and "all 300 held-out" in table.notes["bits per byte"]
