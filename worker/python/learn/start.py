"""Starts N processes of one program, as torchrun does: each learns its rank, and where to meet rank 0.

    python3 start.py 3 gloo_ring.py

It ends with 0 if all do, else with the code of one that failed, which is 128 + K if signal K ended it. When one fails,
it ends the others: they would wait for it.
"""
import os
import socket
import subprocess
import sys
import time


def main(count: int, program: list[str]) -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = str(door.getsockname()[1])  # free now, and as a rule still free when rank 0 asks for it
    where = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    processes = [subprocess.Popen([sys.executable, *program], env={**where, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(count)]
    while not any(process.poll() for process in processes) and any(process.poll() is None for process in processes):
        time.sleep(0.01)
    codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
