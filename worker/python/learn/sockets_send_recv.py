"""send and recv over TCP: rank 0 sends three numbers to rank 1, which answers with their sum.

Check by hand: 1 + 2 + 3 = 6
"""
import multiprocessing
import signal
import socket
import struct


def run(rank: int, listener: socket.socket) -> None:
    signal.alarm(30)  # ends a rank that waits for ever, because its peer is gone
    if rank == 0:
        link, _ = listener.accept()
        link.sendall(struct.pack("<3d", 1, 2, 3))  # send: TCP moves bytes, so both sides must agree on 24 of them
        answer = struct.unpack("<d", link.recv(8, socket.MSG_WAITALL))
        print("rank 0 received", *answer)
    else:
        link = socket.create_connection(listener.getsockname())
        numbers = struct.unpack("<3d", link.recv(24, socket.MSG_WAITALL))  # recv: waits until all 24 are here
        print("rank 1 received", *numbers)
        link.sendall(struct.pack("<d", sum(numbers)))


if __name__ == "__main__":
    server = socket.create_server(("127.0.0.1", 0))  # port 0: the system chooses a free port
    for number in range(2):
        multiprocessing.Process(target=run, args=(number, server)).start()
