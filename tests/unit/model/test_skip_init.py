from pathlib import Path

import pytest
import torch

from linnet.model.decoder import Decoder
from linnet.model.embedding import Embedding
from linnet.model.skip_init import decoder_with_weights, meta_decoder
from linnet.model.spec import ModelSpec
from linnet.model.store import load_decoder, save_decoder

DESCRIPTION = {
    "vocab_size": 9,
    "d_model": 8,
    "context_length": 16,
    "blocks": [{"mixer": {"kind": kind, "heads": 2}} for kind in ("attention", "plga", "ted")],
}
TOKENS_BT = torch.tensor([[1, 2, 3]])


@pytest.fixture
def spec() -> ModelSpec:
    return ModelSpec.parse(DESCRIPTION, "test")


@pytest.fixture
def with_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """An embedding that adds a table, which no file holds."""
    built, forward = Embedding.__init__, Embedding.forward

    def build(self, *arguments):
        built(self, *arguments)
        self.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)

    monkeypatch.setattr(Embedding, "__init__", build)
    monkeypatch.setattr(Embedding, "forward", lambda self, *given: forward(self, *given) + self.table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("with_table")
def test_what_no_file_holds_is_made_anew_in_a_model_that_is_read(spec: ModelSpec, tmp_path: Path, dtype: torch.dtype):
    decoder = Decoder(spec).to(dtype)
    save_decoder(decoder, tmp_path)
    loaded = load_decoder(tmp_path)
    assert loaded.embedding.table.dtype == dtype
    assert torch.equal(loaded.embedding.table, decoder.embedding.table)
    assert torch.equal(loaded(TOKENS_BT), decoder(TOKENS_BT))


def test_it_has_the_given_tensors_themselves_and_leaves_the_random_numbers(spec: ModelSpec):
    tensors = {name: tensor.detach() for name, tensor in Decoder(spec).state_dict().items()}
    before = torch.get_rng_state()
    found = decoder_with_weights(spec, tensors).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert found.keys() == tensors.keys()
    assert all(found[name].data_ptr() == tensor.data_ptr() for name, tensor in tensors.items())


def test_shapes_take_no_memory(spec: ModelSpec):
    assert all(tensor.is_meta for tensor in meta_decoder(spec).state_dict().values())
