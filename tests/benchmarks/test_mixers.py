"""What `benchmarks/mixers.py` leaves out, and that its pairs with Transformers are pairs."""

import pytest

pytest.importorskip("transformers")

import mixers
import mixers_transformers


def test_how_long_a_pass_takes_follows_from_how_shorter_ones_grew():
    assert mixers.expected_s(512, {}) == 0
    assert mixers.expected_s(2048, {"512": {"seconds": 1.0}}) == pytest.approx(4)
    grown = {"256": {"seconds": 9.0}, "512": {"seconds": 1.0}, "1024": {"left_out": "so"}, "2048": {"seconds": 16.0}}
    assert mixers.expected_s(8192, grown) == pytest.approx(256)
    faster = {"512": {"seconds": 1.0}, "2048": {"seconds": 1.5}}
    assert mixers.expected_s(4096, faster) == pytest.approx(3)  # never less than its length


def test_a_cell_over_a_limit_says_so():
    known = {"512": {"seconds": 1.0}}
    wide = mixers.Limits(131_072, 1e9, 1e15)
    assert wide.left_out("mamba", 131_072, known) is None
    slow, small = mixers.Limits(131_072, 60.0, 1e15), mixers.Limits(131_072, 1e9, 2.0**30)
    assert slow.left_out("mamba", 131_072, known) == "expected to take 512 s, over the limit of 60"
    assert slow.left_out("mamba", 2048, known) is None
    assert "GiB" in (small.left_out("mamba", 131_072, known) or "")
    assert small.left_out("mamba", 2048, known) is None


def test_a_pair_with_other_weights_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mixers_transformers, "CHECKED", 9)
    twins = mixers_transformers.PAIRS["rglru"][1]()
    mixers_transformers.check("rglru", twins)
    twins.ours.linear_out.weight.data[0, 0] += 1
    with pytest.raises(SystemExit, match="rglru and Transformers: not correct"):
        mixers_transformers.check("rglru", twins)


def test_tables_leave_open_what_is_not_measured():
    cell = {"seconds": 1.0, "times_of_attention": 2.0}
    times = {"512": cell, "131072": {"left_out": "it takes too long"}}
    beside = {"against": "Mamba", "ours_s": 0.5, "theirs_s": 2.0, "times_as_fast": 4.0}
    found = {"mamba": {"training": {"float32": times, "bfloat16": times}, "transformers": beside}, "experts": {}}
    table = mixers.table(found, "float32")
    assert table.rows == [["mamba", "2.00", "", "", "", "4.00"]]
    assert mixers.table(found, "bfloat16").rows == [["mamba", "2.00", "", "", "", ""]]
    assert mixers.beside_transformers(found).rows == [["mamba", "Mamba", "500", "4.00"]]
    (float32, _) = mixers.plot(found).panels
    assert [list(series.x) for series in float32.series] == [[512]]
