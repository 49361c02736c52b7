"""A small model with a program layer and a growing one, inputs in three plain groups, and a running server."""

import contextlib
import http.client
import json
import threading
import time

import torch
from torch import nn

import neurocoder as nc
from neurocoder.lab.explorer.server.app import Server
from neurocoder.lab.explorer.server.inputs import gathered
from neurocoder.lab.explorer.server.study import Study

SIDE = 14
GROUPS = 3


def build():
    """A program layer that tells the groups apart, and a growing layer with one written slot for each of two."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 12), nn.ReLU(), nn.Linear(12, GROUPS))
    program = nc.ProgramConfig(slots=5, key_dim=2, steps=2, heads=2, least_used=2, hidden=6, sharpness=4.0)
    nc.recode(model, "1", program)
    nc.recode(model, "3", nc.GrowingConfig(slots=4, rank=2, top_k=1))
    with torch.no_grad():
        for parameter in model[1].controller.parameters():
            parameter.normal_(0, 1)
        memory = model[3].memory
        memory.keys[:2] = torch.eye(12)[:2] - 1 / 12  # an input that is largest in unit 0 or 1 finds slot 0 or 1
        memory.born[:2], memory.visits[:2] = torch.tensor([0, 7]), torch.tensor([30.0, 2.0])
        memory.written.fill_(2)
        memory.steps.fill_(10)
    return model


def inputs():
    """Images (30, 1, 14, 14) and labels (30,): those of a label are almost equal."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(30) % GROUPS
    centres = torch.randn(GROUPS, 1, SIDE, SIDE, generator=generator)
    return centres[labels] + 0.01 * torch.randn(30, 1, SIDE, SIDE, generator=generator), labels


def study():
    return Study(build(), gathered(inputs(), 512), "own:build")


@contextlib.contextmanager
def serving(found=None, runs=None, host="127.0.0.1"):
    server = Server(found or study(), runs, host)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.uvicorn.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server
    server.uvicorn.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def request(server, path, method="GET", body=None, **headers):
    """Status, headers, and content, which is parsed if it is JSON; `path` comes after the token if it has no slash."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        address = path if path.startswith("/") else f"/{server.token}/{path}"
        connection.request(method, address, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content, told = answer.read(), dict(answer.getheaders())
        return answer.status, told, json.loads(content) if "json" in told.get("content-type", "") else content
    finally:
        connection.close()
