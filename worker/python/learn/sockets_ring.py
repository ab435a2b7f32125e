"""all_reduce by a ring over TCP: rank r sends to rank r + 1 only, and every rank ends with all sums.

Check by hand: the ranks begin with 1 10 100, 2 20 200 and 3 30 300. The sums are 6 60 600.
"""
import multiprocessing
import signal
import socket
import struct

N = 3  # ranks, and numbers: number i ends its way around the ring at rank i, its owner


def run(r: int, doors: list[socket.socket]) -> None:
    signal.alarm(30)  # ends a rank that waits for ever, because a peer is gone
    right = socket.create_connection(doors[(r + 1) % N].getsockname())
    left, _ = doors[r].accept()
    x = [(r + 1.0) * 10 ** i for i in range(N)]
    for hop in range(2 * N - 2):  # N - 1 hops reduce (each rank adds its own number), N - 1 gather (the sums travel)
        right.sendall(struct.pack("<d", x[(r - 1 - hop) % N]))
        number, = struct.unpack("<d", left.recv(8, socket.MSG_WAITALL))
        x[(r - 2 - hop) % N] = number + (x[(r - 2 - hop) % N] if hop < N - 1 else 0)
    print("rank", r, "has", *x)


if __name__ == "__main__":
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(N)]
    for rank in range(N):
        multiprocessing.Process(target=run, args=(rank, listeners)).start()
