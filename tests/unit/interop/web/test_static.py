"""What the page does with numbers is what Python does with them: evictions, lifetimes, sampling, files."""

import base64
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linnet.core.tensor_file import read_tensors, write_tensors
from linnet.inference.sampling import Sampling, choose
from linnet.ops.decay.eviction import EvictionPolicy, survivors
from linnet.ops.decay.lifetime import lifetimes, relevance

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
        (stays,) = survivors(held, torch.ones_like(held, dtype=torch.bool), EvictionPolicy(*policy))
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


def test_the_same_choice(script):
    torch.manual_seed(0)
    settings_of = [(0.0, 0, 1.0), (0.8, 0, 1.0), (1.0, 3, 1.0), (1.3, 0, 0.5), (0.7, 5, 0.9), (1.0, 500, 0.0)]
    cases = [(torch.randn(40).tolist(), float(torch.rand(())), setting) for setting in settings_of for _ in range(20)]
    found = script(
        """const { choose } = await import("./sampling.js");
        return given.map(([logits, uniform, [temperature, topK, topP]]) =>
            choose(Float32Array.from(logits), { temperature, topK, topP }, 1 - uniform));""",
        cases,
    )
    for (logits, uniform, setting), token in zip(cases, found, strict=True):
        expected = choose(torch.tensor([logits]), Sampling(*setting), torch.tensor([1 - uniform], dtype=torch.float64))
        assert token == int(expected), setting


def test_files_go_both_ways(script, tmp_path: Path):
    tensors = {
        "layer.0.entries": torch.randn(1, 3, 5),
        "capacity": torch.tensor(7),
        "layer.0.ages": torch.zeros(1, 0).long(),
    }
    write_tensors(tmp_path / "python", tensors, {"tokens": "[1]"}, seal=True)
    found = script(
        """const { read, written } = await import("./state_file.js");
        const bytes = Uint8Array.from(Buffer.from(given, "base64"));
        const { tensors, notes } = read(bytes.buffer);
        const { seal, ...others } = notes;
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
    body = """const { read } = await import("./state_file.js");
        try { read(Uint8Array.from(given).buffer); return null; } catch (error) { return error.message; }"""
    assert script(body, list(content))


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 10**7))
def test_axes_end_a_little_above(script, value: int):
    end = script('const { roundUp } = await import("./chart.js"); return roundUp(given);', value)
    assert value <= end <= 1.5 * value
