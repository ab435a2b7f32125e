"""send and recv by MPI: rank 0 sends three numbers to rank 1, which answers with their sum.

Start: mpirun -np 2 python3 mpi_send_recv.py
Check by hand: 1 + 2 + 3 = 6
"""
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
if world.rank == 0:
    world.Send(numpy.array([1.0, 2.0, 3.0]), dest=1, tag=5)  # Send with a capital S: a buffer, without a copy
    print("rank 0 received", world.recv(source=1))  # recv with a small r: any Python object, pickled
else:
    numbers = numpy.empty(3)
    world.Recv(numbers, source=0, tag=5)  # a message matches by sender and tag
    print("rank 1 received", *numbers)
    world.send(numbers.sum().item(), dest=0)
