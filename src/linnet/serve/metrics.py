"""Figures of a server for Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from linnet.serve.host import Host, Hosts

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ServerMetrics:
    """Counters of requests and tokens, and gauges that are read from the hosts when they are asked for."""

    def __init__(self, hosts: Hosts) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("linnet_requests", "Requests.", ("route", "status"), registry=self.registry)
        self.prompt_tokens = Counter("linnet_prompt_tokens", "Tokens of prompts.", ("model",), registry=self.registry)
        self.cached_tokens = Counter(
            "linnet_cached_prompt_tokens", "Tokens of prompts whose state was kept.", ("model",), registry=self.registry
        )
        self.generated_tokens = Counter("linnet_tokens", "Generated tokens.", ("model",), registry=self.registry)
        self.first_token_s = Histogram(
            "linnet_first_token_seconds",
            "Time to the first token.",
            ("model",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.request_s = Histogram(
            "linnet_request_seconds",
            "Time of a request until its answer has been sent.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(HostGauges(hosts))

    def text(self) -> bytes:
        """All figures in Prometheus's text format."""
        return generate_latest(self.registry)


class HostGauges(Collector):
    """What the models hold at the moment."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    def collect(self) -> Iterable[Metric]:
        figures: dict[str, tuple[str, Callable[[Host], float]]] = {
            "linnet_running": ("Streams that run.", lambda host: host.engine.running),
            "linnet_waiting": ("Streams that wait.", lambda host: host.load - host.engine.running),
            "linnet_weights_bytes": ("Bytes of the weights.", lambda host: host.weights_bytes),
            "linnet_prefix_bytes": ("Bytes of kept states of prompts.", lambda host: host.prefixes.nbytes),
            "linnet_prefix_hits": ("Prompts whose state was kept.", lambda host: host.prefixes.counters.hits),
            "linnet_prefix_misses": ("Prompts without a kept state.", lambda host: host.prefixes.counters.misses),
        }
        for name, (meaning, value) in figures.items():
            gauge = GaugeMetricFamily(name, meaning, labels=("model",))
            for host in list(self.hosts.loaded.values()):
                gauge.add_metric([host.name], float(value(host)))
            yield gauge
