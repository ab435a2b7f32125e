"""A parameter server by torch.distributed: rank 0 owns w, the workers 1 and 2 send it their gradients, two steps.

Start: python3 start.py 3 gloo_parameter_server.py
Check by hand: the gradients are 1 and 2, so their mean is 1.5. With learning rate 0.5 a step takes 0.75 from w = 10.
"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
w = torch.tensor([10.0])
for step in range(2):
    gradient = torch.tensor([float(rank)])  # the server's own is 0
    dist.reduce(gradient, dst=0)  # to the server, which gets the sum
    if rank == 0:
        w -= 0.5 * gradient / 2
    dist.broadcast(w, src=0)  # and back. A reduce and a broadcast: an all_reduce with an optimizer in the middle
    if rank > 0:
        print("worker", rank, "step", step, "w", w.item())
