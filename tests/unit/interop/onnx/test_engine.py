"""Graphs speak as their model does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from linnet.core.errors import UserError
from linnet.inference.language_model import load
from linnet.inference.sampling import Sampling
from linnet.interop.onnx.engine import MIN_PLACES

pytest.importorskip("onnxruntime")
from linnet.interop.onnx.engine import GraphReader, Graphs, OnnxLanguageModel


def test_the_same_tokens_as_in_pytorch(exported: tuple[Path, Any], model: Path):
    count = 2 * MIN_PLACES  # the room doubles on the way
    for sampling in (Sampling(0), Sampling(1.0, top_k=20, seed=3)):
        ours = load(model, device="cpu").stream("Once", count, sampling, ignore_eos=True)
        theirs = OnnxLanguageModel(exported[0]).stream("Once", count, sampling, ignore_eos=True)
        assert "".join(theirs) == "".join(ours)
        assert theirs.figures.tokens == ours.figures.tokens == count


@torch.no_grad()
def test_a_stream_may_be_cut_anywhere(exported: tuple[Path, Any], model: Path):
    tokens = torch.randint(257, (300,), generator=torch.Generator().manual_seed(0))
    expected_TV = load(model, device="cpu").decoder(tokens[None])[0].numpy()
    for cuts in ([300], [1, 299], [1, 1, 5, 293], [256, 1, 43]):
        reader, found, done = GraphReader(Graphs(exported[0])), [], 0
        for cut in cuts:
            found.append(reader.read_all(tokens[done : done + cut].tolist()))
            done += cut
        np.testing.assert_allclose(np.concatenate(found), expected_TV, atol=1e-4)


def test_a_changed_file_is_refused(exported: tuple[Path, Any], tmp_path: Path):
    for path in exported[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.onnx.data").write_bytes(b"\0" * 10)
    with pytest.raises(UserError, match=r"model\.onnx\.data: 10 bytes"):
        OnnxLanguageModel(tmp_path)


def test_a_model_folder_is_no_folder_of_graphs(model: Path):
    with pytest.raises(UserError, match=r"no folder of ONNX graphs \(no linnet\.json\)"):
        OnnxLanguageModel(model)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_a_step_is_fused_when_it_is_loaded_or_when_it_is_made_and_never_twice(
    weights: str, exported: tuple[Path, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another look at one in few bits would find nothing to do."""
    import onnx

    from linnet.interop.onnx import engine
    from linnet.interop.onnx.export import export_onnx
    from linnet.interop.onnx.fusion import fuse_step

    folder = exported[0] if weights == "float32" else tmp_path / "graphs"
    if weights != "float32":
        export_onnx(model, folder, precision=weights)
    steps: list[Any] = []
    monkeypatch.setattr(engine, "fuse_step", lambda graph: steps.append(graph) or fuse_step(graph))
    token = GraphReader(Graphs(folder)).read([40])
    assert len(steps) == (weights == "float32") and np.isfinite(token).all()
    written = onnx.load(folder / "model.onnx", load_external_data=False)
    looked = onnx.load(folder / "model.onnx", load_external_data=False)
    fuse_step(looked)
    assert (looked == written) == (weights != "float32")
