import torch
import torch.nn.functional as F

from linnet.layers.diagonal_ssm import step_biases


def test_steps_are_log_uniform():
    torch.manual_seed(0)
    logs = F.softplus(step_biases(20_000).double()).log10().sort().values
    torch.testing.assert_close(logs, torch.linspace(-3, -1, 20_000).double(), rtol=0, atol=0.03)
