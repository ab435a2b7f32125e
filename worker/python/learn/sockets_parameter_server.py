"""A parameter server over TCP: rank 0 owns w, the workers 1 and 2 send it their gradients, two steps.

Check by hand: the gradients are 1 and 2, so their mean is 1.5. With learning rate 0.5 a step takes 0.75 from w = 10.
"""
import multiprocessing
import signal
import socket
import struct


def run(rank: int, listener: socket.socket) -> None:
    signal.alarm(30)  # ends a rank that waits for ever, because a peer is gone
    if rank == 0:
        w, workers = 10.0, [listener.accept()[0] for _ in range(2)]
        for _ in range(2):
            gradients = [struct.unpack("<d", worker.recv(8, socket.MSG_WAITALL))[0] for worker in workers]
            w -= 0.5 * sum(gradients) / 2  # the optimizer runs in the server, once, for all workers
            for worker in workers:
                worker.sendall(struct.pack("<d", w))
    else:
        server = socket.create_connection(listener.getsockname())
        for step in range(2):
            server.sendall(struct.pack("<d", rank))  # the gradient, and then the new w
            print("worker", rank, "step", step, "w", *struct.unpack("<d", server.recv(8, socket.MSG_WAITALL)))


if __name__ == "__main__":
    door = socket.create_server(("127.0.0.1", 0))
    for number in range(3):
        multiprocessing.Process(target=run, args=(number, door)).start()
