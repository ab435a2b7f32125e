"""A parameter server by MPI: rank 0 owns w, the workers 1 and 2 send it their gradients, two steps.

Start: mpirun -np 3 python3 mpi_parameter_server.py
Check by hand: the gradients are 1 and 2, so their mean is 1.5. With learning rate 0.5 a step takes 0.75 from w = 10.
"""
from mpi4py import MPI

world = MPI.COMM_WORLD
w = 10.0
for step in range(2):
    if world.rank == 0:
        gradients: dict[int, float] = {}
        while len(gradients) < 2:  # the gradients come in any order ...
            status = MPI.Status()
            gradient = world.recv(source=MPI.ANY_SOURCE, tag=step, status=status)
            gradients[status.source] = gradient
        w -= 0.5 * (gradients[1] + gradients[2]) / 2  # ... and are added in one order: that keeps the bits
        for worker in (1, 2):
            world.send(w, dest=worker)
    else:
        world.send(float(world.rank), dest=0, tag=step)
        w = world.recv(source=0)
        print("worker", world.rank, "step", step, "w", w)
