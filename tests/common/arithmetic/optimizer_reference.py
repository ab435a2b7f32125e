"""Prints the reference numbers of optimizer_test.cc: PyTorch's optimizers over five steps of fixed gradients.

    /usr/bin/python3 tests/common/arithmetic/optimizer_reference.py      (torch 1.13.1 made the numbers that are there)
"""

from __future__ import annotations

from typing import Callable

import torch

COUNT, STEPS = 8, 5


def run(name: str, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
    parameters = torch.tensor([(i - 3) / 4 for i in range(COUNT)], requires_grad=True)
    optimizer = make([parameters])
    for step in range(STEPS):
        parameters.grad = torch.tensor([((i * 7 + step * 5) % 11 - 5) / 8 for i in range(COUNT)])
        optimizer.step()
    numbers = ", ".join(f"{float(value):.9g}f" for value in parameters.detach())
    print(f"    // {name}\n    {{{numbers}}},")


sgd, adamw = torch.optim.SGD, torch.optim.AdamW
run("sgd", lambda p: sgd(p, lr=0.1))
run("sgd, decay", lambda p: sgd(p, lr=0.1, weight_decay=0.01))
run("momentum", lambda p: sgd(p, lr=0.1, momentum=0.9))
run("momentum, decay", lambda p: sgd(p, lr=0.1, momentum=0.9, weight_decay=0.01))
run("nesterov, decay", lambda p: sgd(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
run("adamw", lambda p: adamw(p, lr=0.01, weight_decay=0.0))
run("adamw, decay", lambda p: adamw(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1))
