"""broadcast, all_reduce and barrier by Starring's star: it knows one operation, a sum, and that is enough.

Start: python3 start.py 3 starring_collectives.py
Check by hand: all get rank 0's 7; all get 1 + 2 + 3 = 6; every "before" is printed above every "after".
"""
import starring.torch
import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # only introduces the ranks to each other
rank = dist.get_rank()
group = starring.torch.connect(sync="star")


def all_reduce(number: float, step: int) -> float:
    x = torch.tensor([number])
    ticket = group.allreduce(step, 0, 0, x.data_ptr(), x.numel(), 0, 1.0)  # begins the sum, and returns at once
    while not group.wait(ticket, milliseconds=1000):  # DDP computes the next gradients here
        pass
    return x.item()


print("rank", rank, "broadcast", all_reduce(7.0 if rank == 0 else 0.0, 0))
print("rank", rank, "all_reduce", all_reduce(rank + 1.0, 1))
print("rank", rank, "before", flush=True)
all_reduce(0.0, 2)
print("rank", rank, "after", flush=True)
