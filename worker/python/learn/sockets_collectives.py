"""broadcast, all_reduce and barrier over sockets: three ranks, and every message goes to rank 0 or comes from it.
Check by hand: all get rank 0's 7; all get 1 + 2 + 3 = 6; every "before" is printed above every "after".
"""
import multiprocessing
import signal
import socket
import struct


def all_reduce(rank: int, links: list[socket.socket], value: float) -> float:
    if rank == 0:  # has a link to every other rank; each of the others has one, to rank 0
        value += sum(struct.unpack("<d", link.recv(8, socket.MSG_WAITALL))[0] for link in links)
    for link in links:
        link.sendall(struct.pack("<d", value))
    return value if rank == 0 else struct.unpack("<d", links[0].recv(8, socket.MSG_WAITALL))[0]


def run(rank: int, links: list[socket.socket]) -> None:
    signal.alarm(30)  # ends a rank that waits for ever, because a peer is gone
    print("rank", rank, "broadcast", all_reduce(rank, links, 7.0 if rank == 0 else 0.0))  # a sum with one term
    print("rank", rank, "all_reduce", all_reduce(rank, links, rank + 1.0))
    print("rank", rank, "before", flush=True)
    all_reduce(rank, links, 0.0)  # barrier: no rank has this sum before all ranks have come
    print("rank", rank, "after", flush=True)


if __name__ == "__main__":
    pairs = [socket.socketpair() for _ in range(2)]  # two connections, each with its two ends
    for number, ends in enumerate([[pairs[0][0], pairs[1][0]], [pairs[0][1]], [pairs[1][1]]]):
        multiprocessing.Process(target=run, args=(number, ends)).start()
