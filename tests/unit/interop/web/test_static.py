"""What the page does with numbers is what Python does with them: evictions, lifetimes, sampling, files."""

import base64
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.arrays import read_tensors, write_tensors
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose
from linnet.layers.mixers.ted import EvictionCache
from linnet.ops.decay.eviction import lifetimes, relevance, survivors

POLICIES = [(0, 1e-8, 1), (0, -1.0, 0), (3, 1e-8, 1), (5, 0.5, 0), (0, 0.5, 4), (2, 0.9, 6), (1, 2.0, 0), (4, -1.0, 30)]


def test_the_same_tokens_stay(script):
    torch.manual_seed(0)
    relevances = [torch.rand(count).mul(10).round().div(10).tolist() for count in (1, 2, 7, 20)]  # equal ones too
    cases = [(values, policy) for values in relevances for policy in POLICIES]
    found = script(
        """const { survivors } = await import("./memory.js");
        return given.map(([values, [topK, threshold, minimum]]) =>
            survivors(Float32Array.from(values), { topK, threshold, minimum }));""",
        cases,
    )
    for (values, policy), rows in zip(cases, found, strict=True):
        held = torch.tensor([values])
        (stays,) = survivors(held, torch.ones_like(held, dtype=torch.bool), EvictionCache(*policy))
        assert rows == stays.nonzero()[:, 0].tolist(), (values, policy)


@pytest.mark.parametrize("heads", [1, 4])
def test_the_same_lifetimes(heads: int, script):
    torch.manual_seed(heads)
    norms_XN, rates_XN = 3 * torch.rand(200, heads), torch.rand(200, heads) ** 4
    norms_XN[:5], rates_XN[5:10] = 0, 0
    found = script(
        """const { lifetime, relevance } = await import("./memory.js");
        return given.map(fields => fields.map(Math.fround)).map(fields => [1e-8, 0.25, 5].map(threshold => {
            const steps = lifetime(Float32Array.from(fields), threshold);
            return Number.isFinite(steps) ? steps : null;
        }).concat(relevance(Float32Array.from(fields), 7)));""",
        torch.cat([-rates_XN, norms_XN], 1).tolist(),
    )
    for column, threshold in enumerate((1e-8, 0.25, 5)):
        expected = [steps if steps < 2**53 else None for steps in lifetimes(norms_XN, rates_XN, threshold).tolist()]
        assert [row[column] for row in found] == expected
    left_X = relevance(norms_XN, rates_XN, torch.full((200,), 7.0))
    torch.testing.assert_close(torch.tensor([row[3] for row in found]), left_X)


SETTINGS = [
    {"temperature": 0.0},
    {},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.3, "top_p": 0.5},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 500, "top_p": 0.0},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.1, "typical_p": 0.4},
    {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.4, "presence_penalty": -0.3},
    {"repetition_penalty": 0.8, "logit_bias": {3: 2.5, 7: -1.25}, "top_k": 9, "min_p": 0.05, "typical_p": 0.9},
]


def test_the_same_choice(script):
    torch.manual_seed(0)
    prompt, generated = [1, 2, 3, 39, 45], [4, 5, 4, 2, 4]  # 45 is an id of the embedding that is no token
    cases = [(torch.randn(40).tolist(), float(torch.rand(())), setting) for setting in SETTINGS for _ in range(20)]
    # Equal logits, at a size where an unstable sort of PyTorch changes their order.
    ties = [torch.randint(0, 4, (300,)).float().tolist() for _ in range(20)]
    ways = ({"top_p": 0.5}, {"top_p": 0.9}, {"min_p": 0.3})
    cases += [(tied, float(torch.rand(())), {"temperature": 0.9} | way) for tied in ties for way in ways]
    defaults = {"top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1, "repetition_penalty": 1}
    names = {"frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "temperature": 0.8} | defaults
    found = script(
        """const { choose } = await import("./sampling.js");
        const seen = new Set(given.tokens), generated = new Map(given.generated);
        return given.cases.map(([logits, uniform, of]) => choose(Float32Array.from(logits), {
            temperature: of.temperature, topK: of.top_k, topP: of.top_p, minP: of.min_p, typicalP: of.typical_p,
            repetition: of.repetition_penalty, frequency: of.frequency_penalty, presence: of.presence_penalty,
            bias: Object.entries(of.logit_bias).map(([token, value]) => [Number(token), value]),
        }, 1 - uniform, { seen, generated }));""",
        {
            "cases": [(logits, uniform, names | setting) for logits, uniform, setting in cases],
            "tokens": [*prompt, *generated],
            "generated": list(Counter(generated).items()),
        },
    )
    for (logits, uniform, setting), token in zip(cases, found, strict=True):
        counts = TokenCounts(set(prompt))
        for one in generated:
            counts.add(one)
        sampling = Sampling(**setting)
        adjusted_BV = adjust(torch.tensor([logits]), sampling, [counts])
        assert token == int(choose(adjusted_BV, sampling, torch.tensor([1 - uniform], dtype=torch.float64))), setting


def test_the_same_penalties_bit_for_bit(script):
    """None of the settings is a float32, so that each must be rounded as PyTorch rounds numbers that meet a tensor."""
    torch.manual_seed(1)
    logits_BV = 10 * torch.randn(20, 40)
    counts = TokenCounts(range(20))
    for token in [2, 5, 5, *[7] * 9]:
        counts.add(token)
    settings = [
        (1.3, 0.1, 0.7, {3: 0.3, 30: -1.7}),
        (0.7, -0.1, 0.3, {}),
        (1.1, 0.0, 0.0, {}),
        (1.0, 1 / 3, 1e-3, {7: 0.1}),
    ]
    found = script(
        """const { adjust } = await import("./sampling.js");
        const counts = { seen: new Set(given.seen), generated: new Map(given.generated) };
        return given.settings.map(([repetition, frequency, presence, bias]) => given.logits.map(logits =>
            Array.from(adjust(Float32Array.from(logits), { repetition, frequency, presence, bias }, counts))));""",
        {
            "logits": logits_BV.tolist(),
            "seen": list(counts.seen),
            "generated": list(counts.generated.items()),
            "settings": [(*numbers, list(bias.items())) for *numbers, bias in settings],
        },
    )
    for (repetition, frequency, presence, bias), rows in zip(settings, found, strict=True):
        sampling = Sampling(
            repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence, logit_bias=bias
        )
        expected_BV = adjust(logits_BV, sampling, [counts] * len(logits_BV))
        assert torch.equal(torch.tensor(rows), expected_BV), sampling


def test_biases_are_read_or_refused(script):
    body = """const { readBias } = await import("./controls.js");
        return given.map(text => { try { return readBias(text); } catch (error) { return error.message; } });"""
    found = script(body, ["", "13=-2.5, 7 = 1,", "x=1"])
    assert found[:2] == [[], [[13, -2.5], [7, 1]]]
    assert found[2] == "logit bias x=1: expected a token id and a number, such as 13=-2.5"


def test_files_go_both_ways(script, tmp_path: Path):
    tensors = {
        "layer.0.entries": torch.randn(1, 3, 5),
        "capacity": torch.tensor(7),
        "layer.0.ages": torch.zeros(1, 0).long(),
    }
    write_tensors(tmp_path / "python", tensors, {"tokens": "[1]"}, checksum=True)
    found = script(
        """const { readTensors: read, writeTensors: written } = await import("./safetensors.js");
        const bytes = Uint8Array.from(Buffer.from(given, "base64"));
        const { tensors, notes } = read(bytes.buffer);
        const { checksum, ...others } = notes;
        return Buffer.from(written(tensors, { ...others, more: "ä" })).toString("base64");""",
        base64.b64encode((tmp_path / "python").read_bytes()).decode(),
    )
    (tmp_path / "page").write_bytes(base64.b64decode(found))
    back = read_tensors(tmp_path / "page")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0{]"])
def test_what_is_no_state_file_is_refused(content: bytes, script):
    body = """const { readTensors: read } = await import("./safetensors.js");
        try { read(Uint8Array.from(given).buffer); return null; } catch (error) { return error.message; }"""
    assert script(body, list(content))


@pytest.mark.parametrize(("position", "capacity"), [(0, 0), (0, -1), (-1, 4), (5, 4)])
def test_a_stream_without_room_for_what_it_has_read_is_refused(script, position: int, capacity: int):
    """Room for no token never becomes enough by being doubled."""
    body = """const { loadStream: loaded } = await import("./stream_file.js");
        const { writeTensors: written } = await import("./safetensors.js");
        const counts = given.map(count => ({ data: BigInt64Array.of(BigInt(count)), dims: [1] }));
        const identity = { model: "a", tokenizer: "b" }, notes = { stream: JSON.stringify(identity) };
        const bytes = written({ positions: counts[0], capacity: counts[1] }, notes);
        const stream = { held: [], adopt: () => { throw new Error("adopted"); } };
        try { return loaded(bytes.buffer, stream, identity); } catch (error) { return error.message; }"""
    said = f"position {position}: expected 0 to the capacity, which is {capacity}"
    assert script(body, [position, capacity]) == said


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 10**7))
def test_axes_end_a_little_above(script, value: int):
    end = script('const { roundUp } = await import("./chart.js"); return roundUp(given);', value)
    assert value <= end <= 1.5 * value


STREAM = """
const { Stream } = await import("./stream.js");
const passes = [];
const session = name => ({ run: async feeds => {
    const [, count] = feeds.tokens.dims, logits = new Float32Array(2 * count);
    logits.set([0, Number(feeds.tokens.data[count - 1])], 2 * count - 2);
    passes.push([name, Number(feeds.position.data[0]), count, feeds.held.dims[1]]);
    return { logits: { data: logits, dims: [1, count, 2] }, "after.held": feeds.held };
} });
const runtime = { Tensor: class { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } } };
const held = { input: "held", output: "after.held", dtype: "float32", shape: [1, null], grows: "places", start: 0 };
const names = { tokens: "tokens", position: "position", logits: "logits" };
const description = { ...names, longest: null, prompt: given.prompt, states: [held], model: { blocks: [] } };
const stream = new Stream(runtime, { step: session("step"), prompt: given.prompt && session("prompt") }, description);
const said = [];
for (const tokens of given.texts) {
    let read = 0;
    while (read < tokens.length) {
        const count = stream.piece(tokens.length - read);
        said.push([...(await stream.read(tokens.slice(read, read + count))).logits]);
        read += count;
    }
}
return { passes, said };
"""


def passes(script, prompt: object, lengths: list[int]) -> list[list[object]]:
    """Which graph, the position, how many tokens, and for how many there is room."""
    texts = [list(range(100, 100 + count)) for count in lengths]
    found = script(STREAM, {"prompt": prompt, "texts": texts})
    assert len(found["said"]) == len(found["passes"])
    read, last = 0, [token for text in texts for token in text]
    for (_, _, count, _), (_, token) in zip(found["passes"], found["said"], strict=True):
        read += count
        assert token == last[read - 1]  # the logits are those behind the last of a piece
    return found["passes"]


def test_a_prompt_is_read_at_once_where_a_graph_takes_any_number(script):
    assert passes(script, {"file": "prompt.onnx", "length": None}, [300, 1, 7, 8]) == [
        ["prompt", 0, 256, 256],
        ["prompt", 256, 44, 512],
        ["step", 300, 1, 512],
        *[["step", 301 + place, 1, 512] for place in range(7)],
        ["prompt", 308, 8, 512],
    ]


def test_a_prompt_is_read_in_whole_pieces_where_a_graph_takes_so_many(script):
    found = passes(script, {"file": "prompt.onnx", "length": 64}, [130, 70])
    assert [entry[:3] for entry in found[:4]] == [
        ["prompt", 0, 64],
        ["prompt", 64, 64],
        ["step", 128, 1],
        ["step", 129, 1],
    ]
    assert [count for _, _, count, _ in found[4:]] == [1] * 70  # to the next place where a piece begins, and behind it


def test_without_a_graph_for_prompts_tokens_are_read_one_by_one(script):
    assert [count for _, _, count, _ in passes(script, None, [70])] == [1] * 70
