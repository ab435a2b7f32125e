"""all_reduce by a ring of torch.distributed's messages: rank r sends to rank r + 1 only, and all end with all sums.

Start: python3 start.py 3 gloo_ring.py
Check by hand: the ranks begin with 1 10 100, 2 20 200 and 3 30 300. The sums are 6 60 600.
"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
r, N = dist.get_rank(), dist.get_world_size()  # number i ends its way around the ring at rank i, its owner
x = torch.tensor([(r + 1.0) * 10 ** i for i in range(N)])
number = torch.empty(1)
for hop in range(2 * N - 2):  # N - 1 hops reduce (each rank adds its own number), N - 1 gather (the sums travel)
    sent = dist.isend(x[[(r - 1 - hop) % N]], dst=(r + 1) % N)  # not send: all ranks would wait for a receiver
    dist.recv(number, src=(r - 1) % N)
    sent.wait()
    place = (r - 2 - hop) % N
    x[place] = number + x[place] if hop < N - 1 else number
print("rank", r, "has", *x.tolist())
