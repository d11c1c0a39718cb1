"""A server as a deployment of Ray Serve: replicas on the machines of a cluster, behind Ray's own proxy.

Reference: https://docs.ray.io/en/latest/serve/http-guide.html.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linnet.core.errors import UserError
from linnet.serve.host import Limits

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.applications import Starlette

    from linnet.serve.app import Settings


def ray_application(
    models: Mapping[str, str], limits: Limits | None = None, settings: "Settings | None" = None, **options: Any
) -> "Application":
    """What `ray.serve.run` runs: the models by name, each replica with all of them.

    Each replica has an engine of its own, and sessions and responses stay in the replica that made them: with
    `num_replicas` above 1, clients of sessions save them to a `state_dir` that the replicas share, or fetch them.
    options: those of `ray.serve.deployment`, such as `num_replicas` and `ray_actor_options`. A replica accepts as many
    requests at the same time as `limits` run and queue, unless `max_ongoing_requests` is given. `UserError` if Ray
    Serve is not installed.
    """
    accepted = limits or Limits()
    try:
        from ray import serve
    except ImportError as error:
        raise UserError(f"Ray Serve needs {error.name}: pip install 'linnet[ray-serve]'") from None

    def build() -> "Starlette":
        """The application, in the process of a replica."""
        from linnet.serve.app import Server, Settings
        from linnet.serve.host import Hosts

        return Server(Hosts(models, accepted), settings or Settings()).application()

    @serve.ingress(build)
    class LinnetDeployment:
        """A replica; all requests are answered by its application."""

    defaults = {"max_ongoing_requests": accepted.max_batch + accepted.max_queue}
    return serve.deployment(**(defaults | options))(LinnetDeployment).bind()
