"""The explorer's server: what it answers, and what it refuses without changing anything."""

import copy
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from half_open import answer, half_open, still_open
from server_helpers import request, serving, study
from starlette.datastructures import Headers

from neurocoder.lab.explorer.server import app as module
from neurocoder.lab.explorer.server import connection
from neurocoder.lab.explorer.server.app import Server, TokenMiddleware, known_host, split_host

TRICKS = (
    *(
        "../",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e/page.css",
        "./",
        "/page.js",
        "page.js/",
        "page.js%00",
    ),
    *("assets/page.css", "server.py", "demo.safetensors", "api", "api/", "api/summary/..", "api//layer?place=0"),
    *("C:\\", "~", "%FF", "page%2ejs%2f", "..;/page.js"),
)
PAGES = ("", "page.css", "page.js", "api/summary", "api/layer?place=0")
QUESTION = "api/inspect?layer=0&index=0"


@pytest.fixture(scope="module")
def found():
    return study()


@pytest.fixture(scope="module")
def server(found):
    with serving(found) as running:
        yield running


@pytest.fixture
def unchanged(server, found):
    """Whatever the test does, the model and the answers stay as they were."""
    model = found.model
    before = copy.deepcopy(model.state_dict()), [part.training for part in model.modules()]
    answers = [request(server, path)[2] for path in PAGES]
    yield
    assert [request(server, path)[2] for path in PAGES] == answers
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert [part.training for part in model.modules()] == before[1]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_page_and_its_parts_are_there(server):
    for path, kind in zip(PAGES, ("html", "css", "javascript", "json", "json"), strict=True):
        status, headers, content = request(server, path)
        assert status == 200
        assert kind in headers["content-type"]
        assert content
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
    code = b"".join(request(server, path)[2] for path in PAGES[:3]).replace(b"http://www.w3.org/2000/svg", b"")
    assert not any(mark in code for mark in (b"http:", b"https:", b"@import", b"WebSocket", b"innerHTML"))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", PAGES)
def test_without_the_token_there_is_nothing(server, path):
    token = server.token
    wrong = (token[:-1], f"{token}x", token.swapcase(), f"/{token}", f"x/{token}", "x", "%00", "%C3%A9", "%FF", "..")
    for prefix in ("/", *(f"/{word}/" for word in wrong)):
        status, _, content = request(server, prefix + path)
        assert status == 403, prefix
        assert content["error"].startswith("the token in the address is missing or wrong")
    assert request(server, f"/{token}")[0] == 307, "the address without its last slash"


def test_the_token_is_long_random_and_compared_in_constant_time(monkeypatch, found, server):
    other = Server(found)
    other.socket.close()
    assert other.token != server.token
    assert len(other.token) >= 32
    compared = []
    monkeypatch.setattr(module.secrets, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    request(server, "/x/")
    assert compared == [(b"x", server.token.encode())]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("path", TRICKS)
def test_path_tricks_find_nothing(server, path):
    status, headers, content = request(server, f"/{server.token}/{path}")
    assert status == 404
    assert content == {"error": "Not Found"}
    assert "content-security-policy" in headers


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "169.254.1.1:{port}", "[::2]:{port}"]
)
def test_other_host_names_are_refused(server, host):
    status, _, content = request(server, "", Host=host.format(port=server.port))
    assert (status, content["error"]) == (403, "this server answers only under the address that it printed")


def test_names_of_this_machine_are_known():
    assert split_host("[::1]:80") == ("[::1]", "80")
    assert split_host("[::1]") == ("[::1]", "")
    assert all(known_host(name, "127.0.0.1") for name in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"))
    assert known_host("192.168.0.7", "0.0.0.0")
    assert known_host(socket.gethostname(), "0.0.0.0")
    assert not known_host("192.168.0.7", "127.0.0.1")
    assert not any(known_host("evil.example", host) for host in ("127.0.0.1", "0.0.0.0"))


@pytest.mark.usefixtures("unchanged")
def test_other_pages_are_refused(server):
    assert request(server, QUESTION, Origin="https://evil.example")[0] == 403
    assert request(server, QUESTION, Origin="null")[0] == 403
    assert request(server, QUESTION, Origin=f"http://127.0.0.1:{server.port}")[0] == 200


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("told", [True, False], ids=["length", "chunked"])
@pytest.mark.parametrize(("start", "status"), [("", 405), ("/wrong/", 403)])
def test_a_body_of_100_mb_is_refused(server, told, start, status):
    piece = b"x" * 1_000_000
    length = {"Content-Length": str(100 * len(piece))} if told else {}
    assert request(server, f"{start}api/inspect", "POST", (piece for _ in range(100)), **length)[0] == status


def begun(server, *headers):
    """A client that has sent half of a request."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    head = [f"POST /{server.token}/api/inspect HTTP/1.1", f"Host: 127.0.0.1:{server.port}", *headers]
    client.sendall("\r\n".join([*head, ""]).encode())
    return client


def test_no_body_is_waited_for(server):
    with begun(server, "Content-Length: 100000000", "Expect: 100-continue", "") as client:
        assert client.recv(100).startswith(b"HTTP/1.1 405")


def test_the_end_is_quiet_while_a_request_is_pending(found, capfd):
    with serving(found) as running:
        client = begun(running)
        time.sleep(0.3)
    client.close()
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def close(clients):
    for client in clients:
        client.close()


def eventually(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_connections_are_bounded_and_the_page_answers_among_half_open_ones(server, monkeypatch):
    monkeypatch.setattr(connection, "MOST", 5)
    first = half_open(server.port, 5)
    request(server, "api/summary")
    later = half_open(server.port, 20)
    for _ in range(3):
        assert answer(server.port, server.token)[0] == "HTTP/1.1 200 OK"
    eventually(lambda: not still_open(first))  # the oldest make room
    assert len(still_open(later)) <= 5
    assert still_open(later[-3:]) == later[-3:]
    assert len(server.uvicorn.server_state.connections) <= 5
    close(first + later)


SLOW = {
    "half of a head": lambda server: half_open(server.port, 1)[0],
    "half of a body": lambda server: begun(server, "Content-Length: 1000000", ""),
    "nothing": lambda server: socket.create_connection(("127.0.0.1", server.port), timeout=10),
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_connection_that_does_not_ask_in_time_is_closed(server, monkeypatch, kind):
    monkeypatch.setattr(connection, "SECONDS", 0.4)
    client, start = SLOW[kind](server), time.monotonic()
    while still_open([client]) or kind == "half of a body":
        assert time.monotonic() - start < 5
        try:
            if kind == "half of a body":  # it is answered before; the rest is not waited for
                client.recv(1000)
            client.sendall(b"" if kind == "nothing" else b"x")  # a byte now and then is no request
        except OSError:
            break
        time.sleep(0.05)
    assert time.monotonic() - start > 0.3
    client.close()


def test_an_answer_that_takes_longer_is_waited_for(server, found, monkeypatch):
    monkeypatch.setattr(connection, "SECONDS", 0.4)
    monkeypatch.setattr(found, "inspect", lambda *question: time.sleep(0.8) or {"late": True})
    assert request(server, QUESTION)[::2] == (200, {"late": True})


BAD = {
    "api/inspect": "layer must be a whole number, got ''",
    "api/inspect?layer=2&index=0": "layer must be a whole number from 0 to 1, got 2",
    "api/inspect?layer=true&index=0": "layer must be a whole number, got 'true'",
    "api/inspect?layer=%FF&index=0": "layer must be a whole number, got '\ufffd'",
    "api/inspect?layer=0": "index must be a whole number, got ''",
    "api/inspect?layer=0&index=-1": "index must be a whole number, got '-1'",
    "api/inspect?layer=0&index=30": "index must be a whole number from 0 to 29, got 30",
    f"api/inspect?layer=0&index={'9' * 9000}": f"index must be a whole number, got '{'9' * 40}'",
    "api/inspect?layer=0&index=0&other=99": "other must be a whole number from 0 to 29, got 99",
    "api/inspect?layer=0&index=0&other=": "other must be a whole number, got ''",
    "api/inspect?layer=0&index=0&other=1&way=2": "way must be a number from 0 to 1, got '2'",
    "api/inspect?layer=0&index=0&other=1&way=NaN": "way must be a number from 0 to 1, got 'NaN'",
    "api/inspect?layer=0&index=0&other=1&way=far": "way must be a number from 0 to 1, got 'far'",
    "api/layer": "place must be a whole number, got ''",
    "api/layer?place=-1": "place must be a whole number, got '-1'",
    "api/layer?place=1e3": "place must be a whole number, got '1e3'",
    "api/layer?place=7": "layer must be a whole number from 0 to 1, got 7",
}


@pytest.mark.usefixtures("unchanged")
def test_bad_questions_get_a_clear_error(server):
    for path, error in BAD.items():
        status, _, content = request(server, path)
        assert (status, content) == (400, {"error": error}), path[:60]
    assert request(server, "api/run?place=0")[::2] == (404, {"error": "there are no runs: start with --runs FOLDER"})
    for method, path in (("POST", QUESTION), ("POST", "api/summary"), ("DELETE", ""), ("PUT", "page.js")):
        assert request(server, path, method)[::2] == (405, {"error": "Method Not Allowed"})


@pytest.mark.usefixtures("unchanged")
def test_fifty_clients_at_once_get_their_answers(server, found):
    alone = [found.inspect(0, index) for index in range(30)]
    start = threading.Barrier(50)

    def client(number):
        start.wait()
        index = number % 30
        answer = request(server, f"api/inspect?layer=0&index={index}")
        return answer[0], answer[2] == alone[index], request(server, PAGES[number % len(PAGES)])[0]

    with ThreadPoolExecutor(50) as pool:
        assert set(pool.map(client, range(50))) == {(200, True, 200)}


def test_calls_of_the_model_wait_for_each_other(found, monkeypatch):
    inside, most = [], []
    before = found.model.forward

    def forward(x):
        inside.append(1)
        most.append(len(inside))
        assert not torch.is_grad_enabled()
        assert not found.model.training
        result = before(x)
        inside.pop()
        return result

    monkeypatch.setattr(found.model, "forward", forward)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(found.inspect, [0] * 30, range(30)))
    assert most == [1] * 30


def test_a_model_that_fails_later_is_told_of(found, server, monkeypatch):
    def fail(x):
        raise RuntimeError("no more\nlines")

    monkeypatch.setattr(found.model, "forward", fail)
    answer = request(server, QUESTION)
    assert answer[::2] == (400, {"error": "the model fails on this input: RuntimeError: no more"})


def test_a_port_in_use_is_a_clear_error(found, server):
    with pytest.raises(ValueError, match=f"--host 127.0.0.1 --port {server.port} cannot be used"):
        Server(found, port=server.port)
    with pytest.raises(ValueError, match=r"--host nowhere\.invalid --port 0 cannot be used"):
        Server(found, host="nowhere.invalid")


def test_clients_omit_port_80():
    def problem(port, **headers):
        return TokenMiddleware(None, "token", "127.0.0.1", port)._problem("/token/", Headers(headers))

    assert problem(80, host="127.0.0.1") == ""
    assert problem(80, host="127.0.0.1:80", origin="http://127.0.0.1:80") == ""
    assert problem(80, host="127.0.0.1:81")
    assert problem(8000, host="127.0.0.1")


def test_the_address_can_be_opened_before_the_server_runs(found):
    server = Server(found)
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()
    server.socket.close()


def test_the_way_to_input_0_is_one_to_another_input(found):
    assert 5 in [index for index, _ in found.inspect(0, 5, 0)["nearest"]]
