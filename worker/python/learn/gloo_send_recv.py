"""send and recv by torch.distributed: rank 0 sends three numbers to rank 1, which answers with their sum.

Start: python3 start.py 2 gloo_send_recv.py
Check by hand: 1 + 2 + 3 = 6
"""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.send(torch.tensor([1.0, 2.0, 3.0]), dst=1)
    answer = torch.empty(1)
    dist.recv(answer, src=1)  # a tensor of the right size and type receives
    print("rank 0 received", *answer.tolist())
else:
    numbers = torch.empty(3)
    dist.recv(numbers, src=0)
    print("rank 1 received", *numbers.tolist())
    dist.send(numbers.sum().reshape(1), dst=0)
