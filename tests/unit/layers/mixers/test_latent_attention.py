import pytest
import torch
from one_layer import bytes_kept
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from linnet.core.errors import UserError
from linnet.inference.weights import convert_weights
from linnet.layers.batch_layout import BatchLayout
from linnet.layers.contract import Place
from linnet.layers.mixers.latent_attention import LatentAttention, LatentAttentionSpec
from linnet.model.decoder import Decoder
from linnet.model.spec import ModelSpec
from linnet.ops import blocked_attention
from linnet.ops.rotary import rotary_range, rotate_reference

WIDTH = 16
SPECS = [
    LatentAttentionSpec(heads=3, head_dim=4, rotary_dim=2, value_dim=5, kv_rank=6, q_rank=7),
    LatentAttentionSpec(heads=2, rotary_dim=4, kv_rank=9, scale=0.9, rotary={"pairing": "adjacent", "base": 50.0}),
]


def of_one_stream(mixer: LatentAttention, spec: LatentAttentionSpec, x_TD: Tensor) -> Tensor:
    """The equations of the documentation, token by token and head by head."""
    content, value = spec.widths(WIDTH)
    turned_width, tokens = spec.rotary_dim, len(x_TD)
    cos, sin = rotary_range(0, tokens, turned_width, spec.rotary.base, x_TD.device)

    def turned(x_K: Tensor, t: int) -> Tensor:
        return rotate_reference(x_K[None, None, None], (cos[t : t + 1], sin[t : t + 1]), spec.rotary.pairing).view(-1)

    def normed(x_R: Tensor, norm: nn.Module) -> Tensor:
        return x_R / (x_R.square().mean() + spec.eps).sqrt() * norm.weight

    query_TQ, rotary_TP, latent_TR = mixer.down.split(x_TD @ mixer.down.weight.t())
    if spec.q_rank:
        query_TQ = torch.stack([mixer.query_up.weight @ normed(q, mixer.query_norm) for q in query_TQ])
    latents = [normed(latent_R, mixer.latent_norm) for latent_R in latent_TR]
    rows = []
    for t in range(tokens):
        read = []
        for head in range(spec.heads):
            q_K = query_TQ[t].view(spec.heads, -1)[head]
            q_P, q_C = turned(q_K[:turned_width], t), q_K[turned_width:]
            up_key = mixer.key_up.weight[head * content : (head + 1) * content]
            up_value = mixer.value_up.weight[head * value : (head + 1) * value]
            scale = spec.scale or (content + turned_width) ** -0.5
            scores = [q_P @ turned(rotary_TP[j], j) + q_C @ (up_key @ latents[j]) for j in range(t + 1)]
            alphas = (torch.stack(scores) * scale).softmax(0)
            read.append(sum(alphas[j] * (up_value @ latents[j]) for j in range(t + 1)))
        rows.append(mixer.out.weight @ torch.cat(read))
    return torch.stack(rows)


@pytest.mark.parametrize("spec", SPECS)
def test_matches_its_equations(spec: LatentAttentionSpec):
    torch.manual_seed(0)
    mixer = spec.build(Place(WIDTH, 32)).double()
    for norm in (mixer.latent_norm, mixer.query_norm):
        if norm is not None:
            nn.init.normal_(norm.weight)
    x_TD = torch.randn(7, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x_TD[None])[0], of_one_stream(mixer, spec, x_TD))


@pytest.mark.parametrize("spec", SPECS)
def test_the_state_is_a_latent_and_a_rotary_key_for_each_token(spec: LatentAttentionSpec):
    state = spec.build(Place(WIDTH, 32)).initial_state(1, 50, torch.device("cpu"), torch.bfloat16)
    assert state.nbytes == 50 * 2 * (spec.kv_rank + spec.rotary_dim) == spec.cost(Place(WIDTH, 32)).state_bytes(50, 2)


@pytest.mark.parametrize(("length", "past", "expands"), [(1, 40, False), (9, 40, False), (70, 40, True), (20, 0, True)])
def test_a_chunk_behind_a_past_expands_it_only_where_it_is_long(length: int, past: int, expands: bool, monkeypatch):
    """Both forms give the same outputs."""
    torch.manual_seed(0)
    mixer = SPECS[0].build(Place(WIDTH, 32)).double()
    x_BTD, taken = torch.randn(2, past + length, WIDTH, dtype=torch.float64), []
    expected = mixer(x_BTD)[:, past:]
    state = mixer.initial_state(2, past + length, x_BTD.device, x_BTD.dtype)
    if past:
        mixer(x_BTD[:, :past], state)
    read = mixer._read
    monkeypatch.setattr(mixer, "_read", lambda *given: taken.append(1) or read(*given))
    torch.testing.assert_close(mixer(x_BTD[:, past:], state, BatchLayout(past)), expected)
    assert bool(taken) == expands


def test_the_flops_of_a_token_do_not_include_projections_of_past_tokens():
    """With a longer past only the scores and the sum over latents grow."""
    mixer, spec = SPECS[0].build(Place(WIDTH, 32)), SPECS[0]
    flops = []
    for past in (100, 1100):
        state = mixer.initial_state(1, past + 1, torch.device("cpu"), torch.float32)
        with FlopCounterMode(display=False) as counter:
            mixer(torch.randn(1, 1, WIDTH, requires_grad=True), state, BatchLayout(past))
        flops.append(counter.get_total_flops())
    assert flops[1] - flops[0] == 1000 * 2 * spec.heads * (spec.rotary_dim + 2 * spec.kv_rank)


@pytest.mark.parametrize(
    "spec", [*SPECS, LatentAttentionSpec(heads=2, rotary_dim=2, head_dim=4, value_dim=6, kv_rank=5)]
)
@pytest.mark.parametrize("tokens", [24, 80])
@pytest.mark.parametrize("most", [0, 1024], ids=["by the kernel", "in blocks"])
def test_activation_memory_is_predicted_exactly(spec: LatentAttentionSpec, tokens: int, most: int, monkeypatch):
    monkeypatch.setattr(blocked_attention, "DEFAULT_MAX_TOKENS", most)
    tables = rotary_range(0, tokens, spec.rotary_dim, spec.rotary.base, torch.device("cpu"))
    found = bytes_kept(spec.build(Place(WIDTH, 32)), WIDTH, tokens, tables)
    assert found == 4 * spec.cost(Place(WIDTH, 32)).activation_elements(3, tokens)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_converted_weights_decode_as_one_pass(weights: str):
    torch.manual_seed(0)
    block = {"mixer": SPECS[0].model_dump(), "feed_forward": None}
    model = {"vocab_size": 11, "d_model": WIDTH, "context_length": 32, "blocks": [block]}
    decoder = Decoder(ModelSpec.parse(model, "test"))
    convert_weights(decoder, weights)
    tokens_BT, state = torch.randint(11, (1, 9)), decoder.initial_state(1, 9)
    outs = [decoder(tokens_BT[:, t : t + 1], state) for t in range(9)]
    error = (torch.cat(outs, dim=1) - decoder(tokens_BT)).abs().max()
    assert error < 0.05 * decoder(tokens_BT).abs().max()


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ({"heads": 3}, "heads: 3: must divide the width 16, or head_dim must be given"),
        ({"rotary_dim": 3}, "rotary_dim: 3: must be even"),
        ({"rotary": {"fraction": 0.5}}, "rotary.fraction: 0.5: must be 1; set rotary_dim instead"),
    ],
)
def test_mistakes_are_one_line(mixer: dict, said: str):
    plain = {"kind": "latent_attention", "heads": 2, "kv_rank": 4, "rotary_dim": 2}
    model = {"vocab_size": 9, "d_model": WIDTH, "context_length": 8, "blocks": [{"mixer": {**plain, **mixer}}]}
    with pytest.raises(UserError, match=said):
        ModelSpec.parse(model, "test")
