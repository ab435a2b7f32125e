"""DistributedDataParallel with its own all_reduce: every rank has the whole model, and gradients are averaged.

Start: python3 start.py 2 gloo_ddp.py
Check by hand: the model is w * x with x = rank + 1, so the gradients are 1 and 2 and their mean is 1.5. With learning
rate 0.5 a step takes 0.75 from w = 10.
"""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
module = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.constant_(module.weight, 10.0)
model = DistributedDataParallel(module)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(2):
    optimizer.zero_grad()
    model(torch.tensor([[rank + 1.0]])).sum().backward()  # the exchange runs inside backward
    optimizer.step()
    print("rank", rank, "step", step, "gradient", module.weight.grad.item(), "w", module.weight.item())
