"""A server as a deployment of Ray Serve on one machine."""

import json
import socket

import pytest

import linnet
from linnet.serve.conformance import Client
from serve_models import write_tiny

pytestmark = pytest.mark.slow


def test_a_deployment_answers_like_python(tmp_path):
    ray = pytest.importorskip("ray")
    serve = pytest.importorskip("ray.serve")
    from linnet.serve.ray_serve import ray_application

    folder = write_tiny(tmp_path / "tiny", {"kind": "attention", "heads": 2}, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ray_application({"tiny": str(folder)}, num_replicas=1, ray_actor_options={"num_cpus": 0.5}))
        client = Client(f"http://127.0.0.1:{port}")
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
    finally:
        serve.shutdown()
        ray.shutdown()
