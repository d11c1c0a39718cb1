"""The golden PLDR-LLM under its published names, and a SentencePiece model."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors import safe_open
from torch import Tensor

from linnet.model.folder import read_description

GOLDEN = Path(__file__).parents[2] / "golden" / "pldr_small.safetensors"


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with safe_open(GOLDEN, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    with safe_open(GOLDEN, "pt") as file:
        return json.loads(file.metadata()["config"])


@pytest.fixture(scope="module")
def weights(golden: dict[str, Tensor]) -> dict[str, Tensor]:
    prefix = "state_dict."
    return {name.removeprefix(prefix): tensor for name, tensor in golden.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model of 20 tokens."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a bird sang to a bee in a tree"] * 20),
        model_prefix=str(folder / "small"),
        vocab_size=20,
        pad_id=0, unk_id=1, bos_id=2, eos_id=3, pad_piece="[PAD]", unk_piece="[UNK]", bos_piece="[START]",
        eos_piece="[END]", minloglevel=2,
    )  # fmt: skip
    return folder / "small.model"


@pytest.fixture
def spec(config: dict[str, Any], tmp_path: Path) -> Path:
    """The description of the golden model, from the preset's."""
    plain = read_description("pldr-v51-110m-1")
    plain |= {"vocab_size": config["vocab_size"], "d_model": config["d_model"], "context_length": config["max_seq_len"]}
    (block,) = plain["blocks"]
    block["repeat"], block["feed_forward"]["hidden"] = config["num_layers"], config["ffn_hidden"]
    block["mixer"] |= {"heads": config["num_heads"], "metric_hidden": config["metric_hidden"]}
    block["mixer"] |= {"residual_units": config["residual_units"], "gated_units": config["glu_per_unit"]}
    path = tmp_path / "golden.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path
