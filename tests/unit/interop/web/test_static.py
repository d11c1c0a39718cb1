"""What the page does with numbers is what Python does with them: evictions, lifetimes, sampling, seeds, files."""

import base64
import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.arrays import read_tensors, write_tensors
from linnet.core.errors import UserError
from linnet.inference.sampling import Sampling, TokenCounts, adjust, choose, uniform_numbers
from linnet.inference.stream_record import GeneratedRun, StreamRecord
from linnet.inference.streams import Request, streams_of
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


SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**53 + 1, 2**63 - 1]


@pytest.mark.parametrize("drawn", [0, 1, 311, 312, 1000])
def test_a_seed_has_the_random_numbers_of_pytorch(script, drawn: int):
    found = script(
        """const { TextRandom, readSeed } = await import("./random.js");
        return given.seeds.map(seed => {
            const random = new TextRandom(readSeed(seed), given.drawn);
            return Array.from({ length: 3000 }, (_, place) => {
                const { uniform } = random;
                if (uniform !== random.uniform) throw new Error("a number that was not used is gone");
                random.count(place, true);
                random.count(place, false);
                return uniform;
            });
        });""",
        {"seeds": [str(seed) for seed in SEEDS], "drawn": drawn},
    )
    for seed, numbers in zip(SEEDS, found, strict=True):
        assert numbers == list(islice(uniform_numbers(seed, drawn), 3000)), seed


def test_the_seeds_of_python_are_accepted_and_no_others(script):
    body = """const { readSeed } = await import("./random.js");
        return given.map(text => { try { return `${readSeed(text)}`; } catch (error) { return error.message; } });"""
    refused = ["-1", "1.5", "x", "1e3", str(2**63)]
    found = script(body, ["", " 007 ", *map(str, SEEDS), *refused])
    assert found[:-5] == ["null", "7", *map(str, SEEDS)]
    assert found[-5:] == [f"seed {seed}: expected a whole number from 0 to 2^63 - 1" for seed in refused]
    Sampling(seed=max(SEEDS))
    for seed in (-1, 2**63):
        with pytest.raises(UserError):
            Sampling(seed=seed)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_a_seed_chooses_the_same_tokens(seed: int, script):
    """Among 50 tokens, 200 times; the second half of the numbers by another text that begins there."""
    torch.manual_seed(0)
    logits_TBV = 2 * torch.randn(200, 1, 50)
    left = iter(logits_TBV)
    request = Request([0], len(logits_TBV), Sampling(temperature=0.9, top_p=0.95, seed=seed))
    (stream,) = streams_of([request], lambda tokens_BT: next(left), 50, torch.zeros(1, 1, dtype=torch.int64))
    found = script(
        """const { choose } = await import("./sampling.js");
        const { TextRandom, readSeed } = await import("./random.js");
        let random = new TextRandom(readSeed(given.seed));
        return given.logits.map((logits, place) => {
            if (place === 100) random = new TextRandom(random.seed, random.drawn);
            const token = choose(Float32Array.from(logits), { temperature: 0.9, topK: 0, topP: 0.95 }, random.uniform);
            random.count(place, false);
            return token;
        });""",
        {"seed": str(seed), "logits": logits_TBV[:, 0].tolist()},
    )
    assert found == [event.token for event in stream]


SAVED = """
const { loadStream, saveStream } = await import("./stream_file.js");
const { writeTensors } = await import("./safetensors.js");
const { TextRandom, readSeed } = await import("./random.js");
const identity = { model: "a".repeat(64), tokenizer: "7".repeat(64) }, note = { tokens: JSON.stringify(given.tokens) };
const stream = {
    held: [], states: {}, position: 4, capacity: 64, policy: {}, description: { cache_policies: [] }, adopt: () => {},
};
const one = { data: BigInt64Array.of(4n), dims: [1] };
const python = writeTensors({ positions: one, capacity: one }, { ...note, stream: given.record });
const { random, counts } = loadStream(python.buffer, stream, identity);
const uniform = random.uniform;
for (const isGreedy of [false, false, true]) {
    random.count(given.tokens.length, isGreedy);
    given.tokens.push(3);
}
const bytes = saveStream(stream, given.tokens, counts, random, { held: [], opening: false }, identity);
const again = loadStream(bytes.buffer, stream, identity).random;
const size = Number(new DataView(bytes.buffer).getBigUint64(0, true));
const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
const asText = `${again.seed}`;
return { uniform, next: again.uniform, seed: asText, record: header.__metadata__.stream };
"""


@pytest.mark.parametrize("has_runs", [True, False])
@pytest.mark.parametrize("seed", [5, 2**63 - 1])
def test_a_file_keeps_the_seed_and_its_place(seed: int, has_runs: bool, script):
    """A seed has more digits than the numbers of JavaScript; what Python writes is read, and the other way round."""
    tokens, runs = [9, 1, 2, 2, 4], [(2, 3, 2**62 + 1, 0, False), (3, 5, seed, 6, False)]
    record = {
        "model": "a" * 64,
        "tokenizer": "7" * 64,
        "pending": [4],
        "text": {"held": "", "opening": False},
        "seed": seed,
        "drawn": 8,
        "seen": [9, 1, 2],
        "generated": {2: 2, 4: 1},
        "runs": runs if has_runs else None,
    }
    found = script(SAVED, {"tokens": list(tokens), "record": json.dumps(record)})
    uniforms = list(islice(uniform_numbers(seed, 8), 3))
    assert (found["seed"], found["uniform"], found["next"]) == (str(seed), uniforms[0], uniforms[2])
    back = StreamRecord.parse(json.loads(found["record"]), "the page")
    assert (back.seed, back.drawn, back.tokenizer) == (seed, 10, "7" * 64)
    *before, drawn, greedy = back.generated_runs(8)
    if has_runs:
        assert (before, drawn) == ([GeneratedRun(*runs[0])], GeneratedRun(3, 7, seed, 6, False))
    else:
        assert (before, drawn) == ([GeneratedRun(2, 5, seed, 8, True)], GeneratedRun(5, 7, seed, 8, False))
    assert greedy == GeneratedRun(7, 8, seed, 10, True)


def test_tokens_of_another_seed_are_another_run(script):
    body = """const { TextRandom } = await import("./random.js");
        const random = new TextRandom(1n, 0, [{ start: 1, end: 3, seed: null, drawn: 0, isGreedy: true }]);
        [3, 4, 7].forEach(place => random.count(place, true));
        return random.runs.map(({ start, end, seed }) => [start, end, `${seed}`]);"""
    assert script(body, None) == [[1, 3, "null"], [3, 5, "1"], [7, 8, "1"]]


def test_a_place_that_no_text_reaches_is_refused(script):
    body = """const { TextRandom } = await import("./random.js");
        return given.map(drawn => {
            try { return `${new TextRandom(1n, drawn).drawn}`; } catch (error) { return error.message; }
        });"""
    assert script(body, [-1, 1e15, 0.5, 7]) == [
        *[f"drawn {n}: expected 0 to 100000000" for n in ("-1", "1000000000000000", "0.5")],
        "7",
    ]


def test_biases_are_read_or_refused(script):
    body = """const { readBias } = await import("./controls.js");
        return given.map(text => { try { return readBias(text); } catch (error) { return error.message; } });"""
    found = script(body, ["", "13=-2.5, 7 = 1,", "x=1", "13=10001", "13=1, 7=3, 13=2"])
    assert found[:2] == [[], [[13, -2.5], [7, 1]]]
    expected = "expected a token id and a number to 1e4, such as 13=-2.5"
    assert found[2:4] == [f"logit bias {part}: {expected}" for part in ("x=1", "13=10001")]
    assert found[4] == [[13, 2], [7, 3]]  # as in a dictionary of Python


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


@pytest.mark.parametrize(
    ("record", "contexts", "message"),
    [
        ({"pending": [5]}, "[]", "3 tokens, of which 1 are pending: the state has read 4"),
        ({"pending": [5], "tokens": 5}, '[{"kind": "eviction", "threshold": Infinity}]', "JSON"),
        ({"pending": [5], "tokens": 5, "beginning": 3}, "[]", "a stream with an input, which the page would lose"),
        ({"pending": [5], "tokens": 5, "prefixes": [2]}, "[]", "a stream with an input, which the page would lose"),
    ],
    ids=["tokens", "policy", "beginning", "prefix"],
)
def test_a_file_that_is_refused_leaves_the_stream_as_it_was(script, record, contexts: str, message: str):
    body = """const { loadStream: loaded } = await import("./stream_file.js");
        const { writeTensors: written } = await import("./safetensors.js");
        const of = (count, dims) => ({ data: BigInt64Array.of(BigInt(count)), dims });
        const identity = { model: "a", tokenizer: "b" }, { tokens = 3, ...record } = given.record;
        const text = { held: "" }, { contexts } = given, saved = { ...identity, seed: 0, drawn: 0, ...record, text };
        const notes = { stream: JSON.stringify(saved), contexts, tokens: JSON.stringify(Array(tokens).fill(5)) };
        const bytes = written({ positions: of(4, [1]), capacity: of(9, []) }, notes);
        const stream = { held: [], adopt: () => { throw new Error("adopted"); } };
        try { return loaded(bytes.buffer, stream, identity); } catch (error) { return error.message; }"""
    assert message in script(body, {"record": record, "contexts": contexts})


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
