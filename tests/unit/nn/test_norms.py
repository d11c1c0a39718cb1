import pytest
import torch

from linnet.nn.norms import GroupedRmsNorm
from linnet.ops.rms_norm import rms_norm_reference


@pytest.mark.parametrize("groups", [1, 3])
def test_each_group_has_its_own_root_mean_square(groups: int):
    torch.manual_seed(0)
    norm, x_BTD = GroupedRmsNorm(12, groups, 1e-3), torch.randn(2, 5, 12)
    torch.nn.init.normal_(norm.weight)
    gain_GK = norm.weight.view(groups, -1)
    parts = [rms_norm_reference(part, gain_GK[group], 1e-3) for group, part in enumerate(x_BTD.chunk(groups, dim=-1))]
    torch.testing.assert_close(norm(x_BTD), torch.cat(parts, dim=-1))


def test_the_precision_is_that_of_the_input():
    norm, x_BTD = GroupedRmsNorm(12, 2, 1e-3).bfloat16(), torch.randn(2, 5, 12)
    assert norm(x_BTD).dtype == torch.float32
