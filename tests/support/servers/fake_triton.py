"""A small real gRPC server that answers as Triton does, and a metrics page beside it."""

import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.model_configuration import parse

CONFIG = """{"name": "m", "max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": "100"},
             "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
             "parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "2"}, "X": {"string_value": "kept"}}}"""

PAGE = """nv_inference_request_success{model="m",version="1"} 10
nv_inference_request_failure{model="m",version="1"} 1
nv_inference_count{model="m",version="1"} 10
nv_inference_exec_count{model="m",version="1"} 5
nv_inference_request_duration_us{model="m",version="1"} 300000
nv_inference_pending_request_count{model="m",version="1"} 3
"""


class Triton(GRPCInferenceServiceServicer):
    """Answers as a Triton server does; its attributes are what a test wants of it."""

    def __init__(self):
        self.extensions = ["statistics", "model_configuration", "model_repository", "binary_tensor_data"]
        self.name = "triton"
        self.configs = {"m": parse(CONFIG)}
        self.takes = lambda config: config  # what of a loaded configuration comes into force
        self.key = None
        self.load_error = None  # (code, details)
        self.unloaded = {}  # configurations of models that somebody unloaded
        self.unloads_after_a_load = False
        self.goes_with_a_load = None  # an ensemble that a load of its step takes out of service
        self.dies_at_a_load = False
        self.ignore_loads = False
        self.breaks_at = None  # a max_batch_size at which the model takes the place of the old one, broken
        self.loaded = []  # the configurations that loads asked for
        self.most_instances = 100  # that there is room for
        self.beyond_them = (grpc.StatusCode.INTERNAL, "no room for another instance")
        self.set_meanwhile = None  # what another client's load puts in force right after the next one
        self.unready_answers = 0  # to ModelReady, after a load
        self.success = self.executions = 0  # beyond those at the start
        self.cache_hits = 0  # of them
        self.more_items = 0  # than requests, at the start

    def unload(self, name):
        """As somebody does by hand."""
        self.unloaded[name] = self.configs.pop(name)

    @property
    def loads(self):
        return len(self.loaded)

    def ServerMetadata(self, request, context):
        return messages.ServerMetadataResponse(name=self.name, version="2.51", extensions=self.extensions)

    def ServerLive(self, request, context):
        return messages.ServerLiveResponse(live=True)

    def RepositoryIndex(self, request, context):
        index = messages.RepositoryIndexResponse()
        for name in self.configs:
            index.models.add(name=name, version="1", state="READY")
        for name in self.unloaded:
            index.models.add(name=name, version="1", state="UNAVAILABLE", reason="unloaded")
        if not request.ready:
            index.models.add(name="broken", state="UNAVAILABLE")
        return index

    def ModelReady(self, request, context):
        self.unready_answers -= 1
        ready = request.name in self.configs and self.unready_answers < 0
        return messages.ModelReadyResponse(ready=ready and not self._is_broken(request.name))

    def _is_broken(self, name):
        return self.configs[name].max_batch_size == self.breaks_at

    def ModelConfig(self, request, context):
        if request.name not in self.configs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}'")
        return messages.ModelConfigResponse(config=self.configs[request.name])

    def ModelStatistics(self, request, context):
        if request.name not in self.configs:
            details = f"requested model '{request.name}' is not available"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        answer = messages.ModelStatisticsResponse()
        stats = answer.model_stats.add(name="m", version="1", inference_count=10 + self.more_items)
        stats.execution_count = 5 + self.executions
        stats.inference_stats.success.count = 10 + self.success
        stats.inference_stats.success.ns = 2_000_000_000
        stats.inference_stats.cache_hit.count = self.cache_hits
        stats.inference_stats.fail.count = 1
        stats.inference_stats.queue.ns = 500_000_000
        stats.inference_stats.compute_input.ns = 100_000_000
        stats.inference_stats.compute_infer.ns = 1_300_000_000
        stats.inference_stats.compute_output.ns = 100_000_000
        batch = stats.batch_stats.add(batch_size=2)
        batch.compute_infer.count, batch.compute_infer.ns = 5, 750_000_000
        return answer

    def RepositoryModelLoad(self, request, context):
        try:
            return self._load(request, context)
        finally:
            if self.set_meanwhile is not None:
                self.configs[request.model_name], self.set_meanwhile = self.set_meanwhile, None

    def _load(self, request, context):
        if self.key is not None and dict(context.invocation_metadata()).get(CONTROL_KEY_HEADER) != self.key:
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "This protocol is restricted, expecting header 'triton-grpc-protocol-control-key'",
            )
        if self.load_error is not None:
            context.abort(*self.load_error)
        if request.model_name in self.unloaded:
            self.configs[request.model_name] = self.unloaded.pop(request.model_name)
        if request.model_name not in self.configs:
            context.abort(grpc.StatusCode.INTERNAL, f"failed to load '{request.model_name}', failed to poll")
        if "config" not in request.parameters:  # as it was
            return messages.RepositoryModelLoadResponse()
        config = parse(request.parameters["config"].string_param)
        self.loaded.append(config)
        if config.instance_group[0].count > self.most_instances:
            context.abort(*self.beyond_them)
        if self.dies_at_a_load:
            self.server.stop(None)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if not self.ignore_loads:
            self.configs[request.model_name] = self.takes(config)
        if self.unloads_after_a_load:
            self.unload(request.model_name)
        if self.goes_with_a_load in self.configs:
            self.unload(self.goes_with_a_load)
        return messages.RepositoryModelLoadResponse()


class MetricsServer(ThreadingHTTPServer):
    """Serves `page`, or `filtered_page` (if set) where the query asks for some metrics only."""

    daemon_threads = True

    def __init__(self):
        self.page, self.filtered_page, self.paths = PAGE, None, []
        super().__init__(("127.0.0.1", 0), MetricsHandler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


class MetricsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server: Any = self.server
        server.paths.append(self.path)
        is_filtered = "?" in self.path and server.filtered_page is not None
        body = (server.filtered_page if is_filtered else server.page).encode()
        self.send_response(200 if self.path.startswith("/metrics") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def serve(servicer, port=0):
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    add_GRPCInferenceServiceServicer_to_server(servicer, server)
    return server, server.add_insecure_port(f"127.0.0.1:{port}")
