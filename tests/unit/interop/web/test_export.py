"""What stands in the folder of a page, and that nothing stands there where something is wrong."""

import hashlib
import json
from pathlib import Path

import pytest
from small_decoders import block, decoder_with_weights, written

from linnet.cli.export import export as export_verb
from linnet.core.errors import UserError
from linnet.data.tokenizer import Tokenizer
from linnet.interop import exporters
from linnet.interop.web import runtime
from linnet.interop.web.export import _names, export_web
from linnet.model.store import write_model

pytest.importorskip("onnxruntime")


@pytest.fixture
def runtime_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime"
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": runtime.VERSION}))
    for name in runtime.FILES:
        (folder / "dist" / name).write_text(name)
    return folder


def test_models_of_one_name_have_two():
    found = _names(
        [Path("/a/big model"), Path("/b/big-model"), Path("/c/big-model-2"), Path("/d/..é"), Path("/e/big-model")]
    )
    assert found == ["big-model", "big-model-2", "big-model-2-2", "model", "big-model-3"]


@pytest.mark.slow
def test_a_folder_of_files_that_point_to_nothing_else(runtime_folder: Path, tmp_path: Path):
    model = written(tmp_path / "ted", decoder_with_weights([block({"kind": "ted"})]))
    made = export_web(model, tmp_path / "site", runtime=runtime_folder)
    site = json.loads((tmp_path / "site" / "site.json").read_text())
    (entry,) = site["models"]
    assert {path for path in made.files if path.startswith("models/")} == {
        f"models/ted/{name}" for name in ("model.onnx", "model.onnx.data", "linnet.json", "tokenizer.json")
    }
    assert {path for path in made.files if path.startswith("runtime/")} == {f"runtime/{name}" for name in runtime.FILES}
    description = json.loads((tmp_path / "site" / "models" / "ted" / "linnet.json").read_text())
    assert description["weights"] == "int8" and made.models["ted"].parity.error < 0.05
    assert description["cache_policies"] == [
        {"kind": "eviction", "top_k": 0, "threshold": -1.0, "min_tokens_to_keep": 0}
    ]
    assert "TopK" not in made.models["ted"].nodes  # the page chooses, so that the graph need not rank
    files = [made.files[f"models/ted/{name}"] for name in ("model.onnx", entry["weights"])]
    assert entry["bytes"] == sum(files)
    listed = json.loads((tmp_path / "site" / "files.js").read_text().removeprefix("self.site = ").rstrip(";\n"))
    assert listed["files"].keys() == made.files.keys() - {"files.js", "worker.js"}
    graph = (tmp_path / "site" / "models" / "ted" / "model.onnx").read_bytes()
    assert listed["files"]["models/ted/model.onnx"] == hashlib.sha256(graph).hexdigest()
    pages = [path for path in (tmp_path / "site").iterdir() if path.suffix in (".html", ".js", ".css")]
    assert len(pages) > 10 and not any("://" in path.read_text() for path in pages)


def test_nothing_is_left_of_what_cannot_be(runtime_folder: Path, tmp_path: Path):
    decoder = decoder_with_weights([block({"kind": "attention", "heads": 2})])
    model = written(tmp_path / "model", decoder)
    definition = json.loads((model / "tokenizer.json").read_text())
    definition["normalizer"] = {"type": "Lowercase"}
    write_model(tmp_path / "odd", decoder, Tokenizer(definition, "odd"), {})
    for models, options, message in (
        ([], {}, "models: none; expected at least one model folder"),
        (tmp_path / "odd", {}, "odd: tokenizer: normalizer Lowercase: the page cannot read it"),
        (model, {"precision": "int3"}, "precision: int3: expected one of float32, int8, int4"),
        (model, {"runtime": tmp_path / "none"}, "none: no such file or folder; expected a folder of onnxruntime-web"),
    ):
        with pytest.raises(UserError) as caught:
            export_web(models, tmp_path / "site", **{"runtime": runtime_folder, **options})
        assert message in str(caught.value)
        assert not (tmp_path / "site").exists()


@pytest.mark.slow
def test_several_on_one_page_from_the_command_line(runtime_folder: Path, tmp_path: Path, capsys):
    written(tmp_path / "ted", decoder_with_weights([block({"kind": "ted"})], name="one"))
    written(tmp_path / "attention", decoder_with_weights([block({"kind": "attention", "heads": 2})]))
    export_verb(
        tmp_path / "ted", tmp_path / "site", to="web", beside=[tmp_path / "attention"], runtime=runtime_folder,
        precision="float32",
    )  # fmt: skip
    site = json.loads((tmp_path / "site" / "site.json").read_text())
    assert [entry["name"] for entry in site["models"]] == ["one", "attention"]
    said = capsys.readouterr().out
    assert "attention: float32, " in said and f"python -m http.server --directory {tmp_path / 'site'}" in said


def test_what_belongs_to_pages_alone_is_refused_elsewhere(tmp_path: Path):
    model = written(tmp_path / "model", decoder_with_weights([block({"kind": "attention", "heads": 2})]))
    for option in ("runtime", "beside"):
        with pytest.raises(UserError, match=f"{option}: .*expected `to` web beside it"):
            exporters.export(model, tmp_path / "out", to="gguf", **{option: tmp_path})
