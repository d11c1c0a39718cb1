"""A server as a deployment of Ray Serve on one machine."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import linnet
from linnet.serve.app import Settings
from linnet.serve.conformance import Client
from serve_models import write_tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(tmp_path_factory) -> Iterator[tuple[Path, Callable[..., Client]]]:
    """A model folder, and a function from the options of a deployment of it to a client."""
    ray = pytest.importorskip("ray")
    serve = pytest.importorskip("ray.serve")
    from linnet.serve.ray_serve import ray_application

    folder = write_tiny(tmp_path_factory.mktemp("models") / "tiny", {"kind": "attention", "heads": 2}, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)

    def deploy(**options: Any) -> Client:
        serve.run(ray_application({"tiny": str(folder)}, ray_actor_options={"num_cpus": 0.5}, **options))
        return Client(f"http://127.0.0.1:{port}")

    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield folder, deploy
    finally:
        serve.shutdown()
        ray.shutdown()


def test_a_deployment_answers_like_python(deployed):
    folder, deploy = deployed
    client = deploy(num_replicas=1)
    assert client.model == "tiny"
    own = linnet.load(folder)
    body = {"prompt": "Once", "max_tokens": 20, "temperature": 1.0, "seed": 3}
    expected = own.generate("Once", 20, temperature=1.0, seed=3)
    assert client.post("/v1/completions", **body)["choices"][0]["text"] == expected
    chunks = client.chunks("/v1/completions", **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    session = client.post("/v1/sessions", text="Once upon")["id"]
    state = client.complete("", from_state=session, return_state=True)["state"]
    assert client.get(f"/v1/sessions/{state}")["tokens"] > 10
    status, answer = client.send("POST", "/v1/completions", {"model": "tinny", "prompt": "a"})
    assert status == 404 and "did you mean tiny" in json.loads(answer)["error"]["message"]


def test_two_replicas_share_requests_and_saved_sessions(deployed, tmp_path):
    """Each answers the same; a session is with the replica that made it, and with both once it is saved."""
    folder, deploy = deployed
    client = deploy(num_replicas=2, settings=Settings(state_dir=tmp_path))
    body = {"prompt": "Once", "max_tokens": 20, "temperature": 1.0, "seed": 3}
    expected = linnet.load(folder).generate("Once", 20, temperature=1.0, seed=3)
    assert [client.post("/v1/completions", **body)["choices"][0]["text"] for _ in range(8)] == [expected] * 8
    session = client.post("/v1/sessions", text="Once upon")["id"]
    statuses = [client.send("GET", f"/v1/sessions/{session}")[0] for _ in range(40)]
    assert set(statuses) == {200, 404}  # both replicas were asked, and one of them has it
    save = ("POST", f"/v1/sessions/{session}/save", {"name": "one"})
    assert 200 in (client.send(*save)[0] for _ in range(40))
    loaded = {client.post("/v1/sessions", name="one")["tokens"] for _ in range(20)}
    assert loaded == {len("Once upon") + 1}
