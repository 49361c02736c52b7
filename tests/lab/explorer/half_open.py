"""Many clients that send half of a request: python tests/lab/explorer/half_open.py [COUNT]

Starts the explorer's server in a process of its own, which may open 1,024 files, holds that many connections (2,000),
and asks for the page after every 200 of them, then every second until the server has closed them all.
"""

import resource
import select
import socket
import subprocess
import sys
import time

STEP = 200
HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
SERVER = """
import torch, neurocoder as nc
from neurocoder.lab.explorer.server.app import Server
from neurocoder.lab.explorer.server.inputs import gathered
from neurocoder.lab.explorer.server.study import Study
server = Server(Study(nc.Linear(4, 2), gathered(torch.randn(20, 4), 20)))
print(server.address, flush=True)
server.run()
"""


def half_open(port, count):
    """Connections that have sent half of a request and say no more."""
    clients = []
    for _ in range(count):
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        client.sendall(HALF)
        clients.append(client)
    return clients


def still_open(clients):
    """Those that the server has not closed."""
    waiting = select.poll()
    for client in clients:
        waiting.register(client, select.POLLIN | select.POLLHUP)
    closed = {number for number, _ in waiting.poll(0)}
    return [client for client in clients if client.fileno() not in closed]


def answer(port, token):
    """Status line and seconds."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(f"GET /{token}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        status = client.recv(4096).partition(b"\r\n")[0].decode()
    return status, time.monotonic() - start


def main(count):
    """The attack with the full number."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, count + 500), most))
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # noqa: E731  # as in most shells
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, preexec_fn=limit)
    try:
        address = server.stdout.readline().split("/")
        port, token = int(address[2].rpartition(":")[2]), address[3]
        start, clients, made = time.monotonic(), [], 0
        while made < count or clients:
            if made < count:
                clients += half_open(port, min(STEP, count - made))
                made = min(made + STEP, count)
            else:
                time.sleep(1)
            status, seconds = answer(port, token)
            clients = still_open(clients)
            told = f"{made} made, {len(clients)} still open; {status} in {1000 * seconds:.0f} ms"
            print(f"{time.monotonic() - start:5.1f} s: {told}", flush=True)
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
