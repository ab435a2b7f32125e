"""all_reduce by Starring's ring: DistributedDataParallel hands it the gradients, and gets the mean over the ranks.

Start: python3 start.py 3 starring_ring.py
Check by hand: a linear model's gradient is its input. The ranks' are 1 10 100, 2 20 200 and 3 30 300. The means are
2 20 200, and three times the mean is the sum: 6 60 600.
"""
import starring.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
r, N = dist.get_rank(), dist.get_world_size()
module = torch.nn.Linear(3, 1, bias=False)
model = DistributedDataParallel(module)
starring.torch.attach(model, sync="ring")  # sync="star" gives the same sums on another way
model(torch.tensor([(r + 1.0) * 10 ** i for i in range(3)])).backward()
print("rank", r, "has", *(N * module.weight.grad[0]).tolist())
