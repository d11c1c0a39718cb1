"""Transformers' own tests of `generate`, which its package leaves out, over models of every kind.

    git clone --depth 1 --branch v5.2.0 https://github.com/huggingface/transformers build/transformers
    python tests/campaigns/generation.py build/transformers [KIND ...]

It needs `pip install parameterized`. `tests/unit/interop/transformers/test_model_generation.py` asks a part of the same
questions in the suite.
"""

import argparse
import importlib.util
import sys
import time
import unittest
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/contracts"), str(ROOT / "tests/unit/interop"), str(ROOT / "tests")]

import torch  # noqa: E402
from linnet_models import KINDS, spec_of, tokens  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import GenerationMixin  # noqa: E402

from linnet.interop.transformers import LinnetConfig, LinnetForCausalLM, StateCache  # noqa: E402

PROMPT = 7


def mixin_of(checkout: Path) -> type:
    """The class of the checkout, whose package of tests has the name of ours."""
    spec = importlib.util.spec_from_file_location("generation_tests", checkout / "tests/generation/test_utils.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings(action="ignore"):  # its marks are unknown here
        spec.loader.exec_module(module)
    mixin: type = module.GenerationTesterMixin
    return mixin


class ModelTester:
    """What the mixin asks of a model: its configuration and inputs."""

    seq_length = PROMPT

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def prepare_config_and_inputs_for_common(self) -> tuple[LinnetConfig, dict[str, Tensor]]:
        config = LinnetConfig.of(spec_of(self.kind, initialization={"std": 0.5, "embedding_std": 1.0}))
        config.bos_token_id = config.pad_token_id = 0
        return config, {"input_ids": tokens(2, PROMPT), "attention_mask": torch.ones(2, PROMPT, dtype=torch.int64)}


class Model(LinnetForCausalLM, GenerationMixin):
    """Without what is documented to be refused, so that the rest of such a test is run; in float64."""

    def __init__(self, config: LinnetConfig) -> None:
        super().__init__(config)
        self.double()

    def generate(self, *inputs: Any, **settings: Any) -> Any:
        settings.pop("output_hidden_states", None)
        if settings.get("cache_implementation") == "dynamic_full":  # which later versions do not have
            settings.pop("cache_implementation")
        return super().generate(*inputs, **settings)


def tester_of(mixin: Any, kind: str) -> type[unittest.TestCase]:
    """The test case of a kind, with checks of states in place of those of keys and values."""

    class Tester(mixin, unittest.TestCase):  # type: ignore[misc]
        all_generative_model_classes = (Model,)
        has_attentions = False
        model_tester = ModelTester(kind)

        def _check_hidden_states_for_generate(self, *_: object, **__: object) -> None:
            """Hidden states are refused."""

        def _check_past_key_values_for_generate(
            self, batch_size: int, past_key_values: StateCache, seq_length: int, config: LinnetConfig
        ) -> None:
            self.assertIsInstance(past_key_values, StateCache)
            self.assertEqual(past_key_values.get_seq_length(), seq_length)
            assert past_key_values.state is not None
            self.assertEqual(list(past_key_values.state.positions), [seq_length] * batch_size)

        def _check_caches_are_equal(self, cache1: StateCache, cache2: StateCache) -> None:
            assert cache1.state is not None and cache2.state is not None
            others = cache2.state.tensors()
            for name, one in cache1.state.tensors().items():
                if name != "capacity":  # the room for tokens to come may differ
                    both = tuple(slice(min(sizes)) for sizes in zip(one.shape, others[name].shape, strict=True))
                    torch.testing.assert_close(one[both], others[name][both])

        def test_left_padding_compatibility(self) -> None:
            self.has_attentions = True  # of which all models with padding are thought to have some
            super().test_left_padding_compatibility()

        @unittest.skip("a state has no keys and values of a given shape")
        def test_past_key_values_format(self) -> None: ...

    return Tester


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND", default=KINDS)
    parser.add_argument("--skipped", action="store_true", help="print what is skipped, and why")
    options = parser.parse_args()
    torch.set_grad_enabled(False)  # with gradients a pass returns no cache unless it is asked for
    mixin, failed = mixin_of(options.checkout), 0
    for kind in options.kinds:
        begin, result = time.monotonic(), unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(tester_of(mixin, kind)).run(result)
        bad = [*result.failures, *result.errors]
        failed += len(bad)
        passed = result.testsRun - len(bad) - len(result.skipped)
        counts = f"{passed} passed, {len(result.skipped)} skipped, {len(bad)} failed"
        print(f"{kind}: {counts}, {time.monotonic() - begin:.0f} s", flush=True)
        if options.skipped:
            for test, reason in result.skipped:
                print(f"  skipped {test.id().rsplit('.', 1)[-1]}: {reason}")
        for test, trace in bad:
            print(f"  {test.id().rsplit('.', 1)[-1]}: {trace.strip().splitlines()[-1][:160]}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
