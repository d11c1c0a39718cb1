"""Every kind of the registry, and what stands around them, becomes graphs that pass the gate."""

from pathlib import Path

import pytest
from graph_cases import CASES, decoder_of_case
from small_decoders import written


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_graphs_of_every_kind_compute_what_the_model_computes(name: str, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from linnet.interop.onnx.export import export_onnx
    from linnet.layers.mixers.ted import EvictionCache

    decoder, cache_policy = decoder_of_case(name)
    report = export_onnx(written(tmp_path / "model", decoder), tmp_path / "graphs", cache_policy=cache_policy)
    assert report.parity.greedy == 1
    assert (report.prompt is None) == isinstance(cache_policy, EvictionCache), report.token_by_token
