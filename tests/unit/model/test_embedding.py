import math

import pytest
import torch

from linnet.layers.batch_layout import BatchLayout
from linnet.model.decoder import Decoder
from linnet.model.embedding import Embedding
from linnet.model.spec import EmbeddingSpec, ModelSpec


@pytest.mark.parametrize("width", [1, 6, 7])
@pytest.mark.parametrize("start", [0, 30])
def test_sinusoidal_positions_follow_the_formula(width: int, start: int):
    embedding = Embedding(EmbeddingSpec(positions="sinusoidal"), 5, width, 8)
    tokens = torch.tensor([[1, 2, 3]])
    added = embedding(tokens, BatchLayout(start)) - embedding.tokens(tokens)
    expected = [
        [
            math.sin(p * 10000 ** (-d / width)) if d % 2 == 0 else math.cos(p * 10000 ** (-(d - 1) / width))
            for d in range(width)
        ]
        for p in range(start, start + 3)
    ]
    torch.testing.assert_close(added[0], torch.tensor(expected), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_stream_in_chunks_with_padding_and_documents_has_its_positions(positions: str):
    block = {"mixer": {"kind": "attention", "heads": 2, "rotary": None}}
    embedding = {"positions": positions}
    spec = ModelSpec(vocab_size=9, d_model=16, context_length=32, embedding=embedding, blocks=[block])
    decoder = Decoder(spec).double()
    tokens = torch.randint(9, (2, 12))
    whole, state = decoder(tokens), decoder.initial_state(2, 12)
    chunks = torch.cat([decoder(tokens[:, a:b], state) for a, b in ((0, 5), (5, 6), (6, 12))], dim=1)
    torch.testing.assert_close(chunks, whole)
    padded = decoder(tokens, padding=[3, 0])
    torch.testing.assert_close(padded[0, 3:], decoder(tokens[:1, 3:])[0])
    documents = decoder(tokens, documents=[[4], []])
    torch.testing.assert_close(documents[0, 4:], decoder(tokens[:1, 4:])[0])
