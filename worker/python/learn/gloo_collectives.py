"""broadcast, all_reduce and barrier by torch.distributed: three ranks, which make the same calls in the same order.

Start: python3 start.py 3 gloo_collectives.py
Check by hand: all get rank 0's 7; all get 1 + 2 + 3 = 6; every "before" is printed above every "after".
"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.tensor([7.0 if rank == 0 else 0.0])
dist.broadcast(x, src=0)
print("rank", rank, "broadcast", x.item())
y = torch.tensor([rank + 1.0])
dist.all_reduce(y)  # the sum; both x and y are changed in place
print("rank", rank, "all_reduce", y.item())
print("rank", rank, "before", flush=True)
dist.barrier()
print("rank", rank, "after", flush=True)
