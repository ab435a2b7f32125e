"""broadcast, all_reduce and barrier by MPI: three ranks, all of which make the same calls in the same order.

Start: mpirun -np 3 python3 mpi_collectives.py
Check by hand: all get rank 0's 7; all get 1 + 2 + 3 = 6; every "before" is printed above every "after".
"""
from mpi4py import MPI

world = MPI.COMM_WORLD
print("rank", world.rank, "broadcast", world.bcast(7.0 if world.rank == 0 else None, root=0))
print("rank", world.rank, "all_reduce", world.allreduce(world.rank + 1.0, op=MPI.SUM))
print("rank", world.rank, "before", flush=True)
world.Barrier()
print("rank", world.rank, "after", flush=True)
