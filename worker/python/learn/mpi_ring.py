"""all_reduce by a ring of MPI messages: rank r sends to rank r + 1 only, and every rank ends with all sums.

Start: mpirun -np 3 python3 mpi_ring.py
Check by hand: the ranks begin with 1 10 100, 2 20 200 and 3 30 300. The sums are 6 60 600.
"""
from mpi4py import MPI

world = MPI.COMM_WORLD
r, N = world.rank, world.size  # as many numbers as ranks: number i ends its way around the ring at rank i, its owner
right, left = (r + 1) % N, (r - 1) % N
x = [(r + 1.0) * 10 ** i for i in range(N)]
for hop in range(N - 1):  # reduce: a partial sum travels right, and each rank adds its own number
    x[(r - 2 - hop) % N] += world.sendrecv(x[(r - 1 - hop) % N], dest=right, source=left)
for hop in range(N - 1):  # gather: the owner's sum travels right
    x[(r - 1 - hop) % N] = world.sendrecv(x[(r - hop) % N], dest=right, source=left)
print("rank", r, "has", *x)
