"""Whether what runs is being made a graph of, to be exported: some forms are for graphs alone."""

import torch


def exporting() -> bool:
    """`torch.compiler.is_exporting`, which in PyTorch 2.11 is true of all that is compiled as well; here it is not.

    Exports trace without the compiler (`strict=False`).
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
