"""A target against small real gRPC and HTTP servers: what it reads, changes, and says when it cannot."""

import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from google.protobuf import text_format
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

from serving_adapter import target_change
from serving_adapter.model_configuration import edited, knob_values, parse
from serving_adapter.target import (
    CONTROL_KEY_HEADER,
    LostInChange,
    NotPutBack,
    Target,
    TargetError,
    TargetLost,
)

CONFIG = """{"name": "m", "max_batch_size": 4, "dynamic_batching": {"max_queue_delay_microseconds": "100"},
             "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
             "parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "2"}, "X": {"string_value": "kept"}}}"""

PAGE = """nv_inference_request_success{model="m",version="1"} 10
nv_inference_request_failure{model="m",version="1"} 1
nv_inference_count{model="m",version="1"} 20
nv_inference_exec_count{model="m",version="1"} 5
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
        self.dies_at_a_load = False
        self.ignore_loads = False
        self.breaks_at = None  # a max_batch_size at which the model takes the place of the old one, broken
        self.loads = 0
        self.unready_answers = 0  # to ModelReady, after a load
        self.success = self.executions = 0  # beyond those at the start

    def ServerMetadata(self, request, context):
        return messages.ServerMetadataResponse(name=self.name, version="2.51", extensions=self.extensions)

    def ServerLive(self, request, context):
        return messages.ServerLiveResponse(live=True)

    def RepositoryIndex(self, request, context):
        index = messages.RepositoryIndexResponse()
        for name in self.configs:
            index.models.add(name=name, version="1", state="READY")
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
        answer = messages.ModelStatisticsResponse()
        stats = answer.model_stats.add(name="m", version="1", inference_count=20)
        stats.execution_count = 5 + self.executions
        stats.inference_stats.success.count = 10 + self.success
        stats.inference_stats.success.ns = 2_000_000_000
        stats.inference_stats.fail.count = 1
        stats.inference_stats.queue.ns = 500_000_000
        stats.inference_stats.compute_input.ns = 100_000_000
        stats.inference_stats.compute_infer.ns = 1_300_000_000
        stats.inference_stats.compute_output.ns = 100_000_000
        batch = stats.batch_stats.add(batch_size=4)
        batch.compute_infer.count, batch.compute_infer.ns = 5, 750_000_000
        return answer

    def RepositoryModelLoad(self, request, context):
        if self.key is not None and dict(context.invocation_metadata()).get(CONTROL_KEY_HEADER) != self.key:
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                "This protocol is restricted, expecting header 'triton-grpc-protocol-control-key'",
            )
        if self.load_error is not None:
            context.abort(*self.load_error)
        if request.model_name not in self.configs:
            context.abort(grpc.StatusCode.INTERNAL, f"failed to load '{request.model_name}', failed to poll")
        self.loads += 1
        if self.dies_at_a_load:
            self.server.stop(None)
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if not self.ignore_loads:
            config = parse(request.parameters["config"].string_param)
            self.configs[request.model_name] = self.takes(config)
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
        server = self.server
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


@pytest.fixture
def triton():
    servicer = Triton()
    server, port = serve(servicer)
    server.start()
    servicer.address, servicer.server = f"127.0.0.1:{port}", server
    yield servicer
    server.stop(None).wait()


@pytest.fixture
def metrics():
    server = MetricsServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def make_target():
    made = []

    def make(*arguments, **options):
        made.append(Target(*arguments, **{"timeout_s": 2.0} | options))
        return made[-1]

    yield make
    for target in made:
        target.close()


def test_takes_the_only_ready_model_and_reads_its_knobs(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert target.model == "m"
    assert target.server == "triton 2.51"
    assert target.configuration() == {
        "instances": 1,
        "intra_op_threads": 2,
        "max_batch_size": 4,
        "max_queue_delay_us": 100,
    }
    assert target.knobs()["instances"] == (1, 64)
    assert "inter_op_threads" not in target.knobs()


def test_without_a_dynamic_batcher_the_batch_size_is_no_knob(triton, make_target):
    triton.configs["m"].ClearField("dynamic_batching")
    target = make_target(triton.address)
    target.connect()
    assert set(target.knobs()) == {"instances", "intra_op_threads"}


def test_apply_changes_the_knobs_and_keeps_every_other_field(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.unready_answers = 3  # it waits until the model is ready again
    target.apply({"instances": 3, "max_queue_delay_us": 0})
    assert triton.unready_answers < 0
    assert target.configuration() == knob_values(CONFIG) | {"instances": 3, "max_queue_delay_us": 0}
    assert triton.configs["m"] == edited(parse(CONFIG), {"instances": 3, "max_queue_delay_us": 0})


@pytest.mark.parametrize("preferred", [[2, 3], [2], [4], []])
def test_preferred_batch_sizes_come_back_with_the_configuration_found(triton, make_target, preferred):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = preferred
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    target.apply({"max_batch_size": 2})
    assert set(triton.configs["m"].dynamic_batching.preferred_batch_size) <= {2}
    target.connect()
    target.apply({"max_batch_size": 4})
    assert triton.configs["m"] == found


def test_preferred_batch_sizes_come_back_after_a_kill_too(triton, make_target):
    triton.configs["m"].dynamic_batching.preferred_batch_size[:] = [2, 3]
    found = edited(triton.configs["m"], {})
    killed = make_target(triton.address)
    killed.connect()
    text = killed.config_pbtxt()
    killed.apply({"max_batch_size": 2})
    next_run = make_target(triton.address)
    next_run.connect()
    next_run.was_found_as(text)
    next_run.apply({"max_batch_size": 4})
    assert triton.configs["m"] == found


def test_applying_what_is_in_force_sends_nothing(triton, make_target):
    target = make_target(triton.address)
    target.connect(control=False)
    target.apply({"instances": 1})
    assert triton.loads == 0


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ({"instances": 0}, "instances must be from 1 to 64, got 0"),
        ({"instances": 2.5}, "instances must be an integer"),
        ({"inter_op_threads": 2}, "has no knob inter_op_threads; it has instances"),
    ],
)
def test_a_bad_configuration_is_refused_before_it_is_sent(triton, make_target, configuration, says):
    target = make_target(triton.address)
    target.connect(control=False)
    with pytest.raises(TargetError, match=says):
        target.apply(configuration)
    assert triton.loads == 0


def test_how_a_configuration_came_into_force(triton, make_target):
    """As Triton does: the instance count alone in place, all the rest in one new load."""
    target = make_target(triton.address)
    target.connect()
    assert target.apply({"instances": 3}) == (True, 2, True)
    assert target.apply({"instances": 2, "max_batch_size": 4}) == (True, 0, True)
    assert triton.loads == 2
    assert target.apply({"instances": 3, "max_batch_size": 8, "intra_op_threads": 1}) == (False, 3, True)
    assert triton.loads == 3
    assert target.apply({"instances": 3}) == (True, 0, False)
    assert triton.loads == 3


def test_an_in_place_change_that_loaded_the_model_anew_is_seen(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.executions = -5  # the model's files had changed: its statistics began again
    assert target.apply({"instances": 3}) == (False, 3, True)


def test_instances_of_all_groups_are_cold_after_a_new_load(triton, make_target):
    triton.configs["m"].instance_group.add(name="gpus", count=2, kind="KIND_GPU", gpus=[0, 1])
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    assert "the knob instances is the count of the first" in target.notes[0]
    assert target.apply({"instances": 2}) == (True, 1, True)
    assert target.apply({"max_batch_size": 2}) == (False, 2 + 2 * 2, True)
    assert triton.configs["m"].instance_group[1] == found.instance_group[1]


def test_a_load_that_fails_or_does_nothing_leaves_the_previous_configuration(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    failure = "load failed for model 'm': version 1: Internal: no memory\n\nAt:\n  model.py(3): initialize\n"
    triton.load_error = (grpc.StatusCode.INVALID_ARGUMENT, failure)
    says = r"Load: .*: no memory \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"instances": 2})
    triton.load_error, triton.ignore_loads = None, True
    says = r"reports instances=1 instead of 2 \(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"instances": 2})


def test_a_model_that_does_not_become_ready_gets_its_previous_configuration_back(
    triton, make_target, monkeypatch
):
    monkeypatch.setattr(target_change, "TIMEOUT_S", 0.2)
    found = edited(triton.configs["m"], {})
    target = make_target(triton.address)
    target.connect()
    triton.breaks_at = 8
    says = r"not ready 0.2 s after .*\(the previous configuration is in force\)$"
    with pytest.raises(TargetError, match=says):
        target.apply({"max_batch_size": 8, "instances": 2})
    assert triton.configs["m"] == found
    triton.breaks_at = 4
    with pytest.raises(NotPutBack, match="could not be put back: model 'm' is not ready"):
        target.apply({"instances": 2})


def test_a_previous_configuration_that_comes_back_otherwise_is_told(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.takes = lambda config: parse('{"name": "m", "instance_group": [{"count": 1}]}')
    with pytest.raises(
        NotPutBack, match=r"instead of 2 \(.* could not be put back: the server reports another"
    ):
        target.apply({"instances": 2})


def test_a_server_that_dies_in_mid_change_is_lost(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.dies_at_a_load = True
    with pytest.raises(LostInChange, match=r"is lost \(.*\) in the middle of a change to instances=2$"):
        target.apply({"instances": 2})


def test_the_models_config_pbtxt(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    assert text_format.Parse(target.config_pbtxt(), ModelConfig()) == parse(CONFIG)
    changed = text_format.Parse(target.config_pbtxt({"instances": 3}), ModelConfig())
    assert changed == edited(parse(CONFIG), {"instances": 3})
    with pytest.raises(TargetError, match="instances must be from 1 to 64"):
        target.config_pbtxt({"instances": 0})
    assert triton.loads == 0


def test_calls_are_counted(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    target.calls.clear()
    target.read()
    assert target.calls == {"ModelStatistics": 1, "metrics page": 1}
    target.glance()
    assert target.calls == {"ModelStatistics": 1, "metrics page": 2}


def test_connecting_loads_nothing(triton, make_target):
    make_target(triton.address).connect()
    assert triton.loads == 0


ENSEMBLE = """{"name": "e", "platform": "ensemble", "max_batch_size": 4,
               "ensemble_scheduling": {"step": [{"model_name": "m"}, {"model_name": "n"}]}}"""


def test_a_step_of_an_ensemble_is_refused_before_anything_is_changed(triton, make_target):
    triton.configs["e"] = parse(ENSEMBLE)
    target = make_target(triton.address, "m")
    with pytest.raises(TargetError, match=r"'m' at .* is a step of the ensemble 'e', .*; unload the"):
        target.connect()
    target.connect(control=False)
    with pytest.raises(TargetError, match=r"'e' at .* is an ensemble, .*; serve one of its steps \(m, n\)"):
        make_target(triton.address, "e").connect()
    del triton.configs["e"]
    target.connect()
    assert triton.loads == 0


def test_a_sequence_batcher_leaves_the_instances_alone_to_tune(triton, make_target):
    """A new load cuts the sequences in progress; with the strategy `oldest` a Triton that shrinks crashes."""
    triton.configs["m"].sequence_batching.direct.SetInParent()  # it takes the dynamic batcher's place
    target = make_target(triton.address)
    target.connect()
    assert target.knobs().keys() == {"instances"}
    assert "the instances are its only knob" in target.notes[0]
    with pytest.raises(TargetError, match="has no knob intra_op_threads; it has instances"):
        target.apply({"intra_op_threads": 1})
    target.apply({"instances": 2})
    triton.configs["m"].sequence_batching.oldest.max_candidate_sequences = 4
    with pytest.raises(
        TargetError, match=r"strategy 'oldest', which forbids every knob: .*; use the strategy"
    ):
        target.connect()
    target.connect(control=False)
    assert target.configuration() == {}


def test_a_decoupled_model_and_one_without_knobs(triton, make_target):
    triton.configs["m"].model_transaction_policy.decoupled = True
    target = make_target(triton.address)
    target.connect()
    assert "latencies go to the last response" in target.notes[0]
    triton.configs["m"] = parse('{"name": "m"}')
    with pytest.raises(TargetError, match=r"'m' at .* has no knob: its configuration needs"):
        target.connect()


@pytest.mark.parametrize("difference", ["fewer", "not growing", "growing faster"])
def test_a_metrics_page_of_another_server_is_told(triton, metrics, make_target, difference):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    says = "so it is the page of another server; give the metrics URL of the target"
    if difference == "fewer":
        triton.success = 100
        with pytest.raises(TargetError, match=f"counts 10 answered requests .* itself 110 .*{says}"):
            target.connect()
        return
    metrics.page = PAGE.replace("} 10", "} 1000")  # as after an earlier load
    target.connect()
    for k in (1, 2):
        triton.success += 100 if difference == "not growing" else 1
        if difference == "growing faster":
            metrics.page = PAGE.replace("} 10", f"}} {1000 + 100 * k}")
        if k == 1:
            target.read()  # once may be the drain of an earlier load
    with pytest.raises(TargetError, match=f"in the same time, {says}"):
        target.read()


def test_what_an_earlier_load_still_answers_is_no_sign_of_another_server(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    metrics.page = PAGE.replace("} 10", "} 1000")
    target.connect()
    target.apply({"instances": 3})
    for k in range(1, 6):  # the old instances drain a long queue, which the new statistics leave out
        metrics.page = PAGE.replace("} 10", f"}} {1000 + 200 * k}")
        assert target.read().success == 1000 + 200 * k


def test_the_page_of_another_kind_of_server_is_told(triton, metrics, make_target):
    ours = PAGE + 'rrl_in_flight_request_count{model="m",version="1"} 3\n'
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    metrics.page = ours
    with pytest.raises(
        TargetError, match=r"is that of an rrl-serve, which \S+ is not, so .* another server;"
    ):
        target.connect()
    triton.name = "rrl-serve"
    target.connect()
    metrics.page = ours.replace("} 10", "} 100")  # our own server's statistics never begin again
    with pytest.raises(TargetError, match=r"counts 100 answered requests .* itself 10 since it started, so"):
        target.connect()
    metrics.page = PAGE
    with pytest.raises(
        TargetError, match=r"is not that of an rrl-serve, which \S+ is, so .* another server;"
    ):
        target.connect()


def test_new_loads_between_two_readings_contradict_no_page(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    for k in (1, 2, 3):
        target.apply({"max_batch_size": k})
        metrics.page = PAGE.replace("} 10", f"}} {10 + 300 * k}")
        triton.success = 50 * k  # of 300 that were answered since the last reading
        target.read()


def test_statistics_that_begin_again_contradict_no_page(triton, metrics, make_target):
    metrics.page = PAGE.replace("} 10", "} 1000")
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    target.apply({"max_batch_size": 2})
    triton.success = -10
    for k in (1, 2, 3):
        metrics.page = PAGE.replace("} 10", f"}} {1000 + 100 * k}")
        triton.success += 95  # the others drain
        reading = target.read()
        assert reading.success == 1000 + 100 * k
        assert reading.answered_by_earlier_loads == 1000 + 5 * k


def test_statistics_make_a_reading_and_the_missing_page_is_told(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    reading = target.read()
    assert (reading.success, reading.failure, reading.arrivals) == (10, 1, 11)
    assert (reading.request_s, reading.queue_s, reading.service_s) == pytest.approx((2.0, 0.5, 1.5))
    assert reading.telemetry == {(0, 4): (5, 0.75)}
    assert reading.cpu_busy_s is not None  # of this machine
    assert len(target.notes) == 1
    assert "completions, not arrivals" in target.notes[0]


def test_a_named_metrics_page_tells_arrivals_and_statistics_the_batches(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    reading = target.read()
    assert (reading.arrivals, reading.pending) == (14, 3)
    assert reading.telemetry == {(0, 4): (5, 0.75)}
    assert target.notes == []


def test_an_advertised_page_is_found_and_a_glance_asks_for_little(triton, metrics, make_target):
    metrics.filtered_page = PAGE.replace("} 10", "} 11")
    triton.extensions.append(f"metrics({metrics.server_port})")
    target = make_target(triton.address)
    target.connect()
    assert target.metrics_url == f"http://127.0.0.1:{metrics.server_port}/metrics"
    assert target.glance().arrivals == 15
    assert target.read().arrivals == 14
    target.glance()
    assert "name%5B%5D=nv_inference_request_success" in metrics.paths[-1]


def test_a_glance_at_a_server_without_the_filter_reads_the_whole_page(triton, metrics, make_target):
    triton.extensions.append(f"metrics({metrics.server_port})")
    metrics.filtered_page = ""
    target = make_target(triton.address)
    target.connect()
    assert target.glance().arrivals == 14


def test_an_advertised_page_out_of_reach_is_told_and_left_out(triton, make_target):
    triton.extensions.append("metrics(1)")
    target = make_target(triton.address)
    target.connect()
    assert (
        "left out: the metrics page http://127.0.0.1:1/metrics does not answer (connection refused)"
        in (target.notes[0])
    )
    assert target.read().arrivals == 11


def test_a_named_page_that_is_none_is_an_error(triton, metrics, make_target):
    for url, says in (
        ("http://127.0.0.1:1/metrics", "does not answer"),
        (f"http://127.0.0.1:{metrics.server_port}/nothing", "answers 404"),
        (f"http://{triton.address}/metrics", "does not answer with HTTP .* it may be a gRPC port"),
        (f"https://127.0.0.1:{metrics.server_port}/metrics", "makes no TLS connection .* use http://"),
        ("localhost:8002", "must be like http://HOST:PORT/metrics"),
        ("ftp://localhost:8002/metrics", "must be like http://HOST:PORT/metrics"),
        ("http://localhost:99999/metrics", "must be like http://HOST:PORT/metrics"),
    ):
        with pytest.raises(TargetError, match=says):
            make_target(triton.address, metrics_url=url).connect()


def test_the_page_of_another_model_is_an_error(triton, metrics, make_target):
    metrics.page = PAGE.replace('"m"', '"n"')
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    with pytest.raises(TargetError, match="no series of model 'm', only of n"):
        target.connect()


def test_a_model_that_is_not_there_is_told_with_those_that_are(triton, make_target):
    with pytest.raises(TargetError, match=r"model 'x' is not there at .*; ready: m"):
        make_target(triton.address, "x").connect()
    with pytest.raises(TargetError, match="model 'broken' is not ready"):
        make_target(triton.address, "broken").connect()


def test_several_models_ask_for_a_name(triton, make_target):
    triton.configs["n"] = parse(CONFIG)
    with pytest.raises(TargetError, match="serves several models; name one of m, n"):
        make_target(triton.address).connect()
    target = make_target(triton.address, "n")
    target.connect()
    assert target.model == "n"


def test_no_model_at_all(triton, make_target):
    triton.configs.clear()
    with pytest.raises(TargetError, match="no model is ready"):
        make_target(triton.address).connect()


def test_missing_extensions_say_what_that_means(triton, make_target):
    triton.extensions = ["model_configuration"]
    with pytest.raises(TargetError, match="lacks Triton's extensions statistics, model_repository") as caught:
        make_target(triton.address).connect()
    assert "can only be observed, with --advise and --metrics-url" in str(caught.value)


def test_a_server_without_statistics_needs_its_page(triton, make_target):
    triton.extensions = []
    with pytest.raises(TargetError, match="only its metrics page tells how it fares; give --metrics-url"):
        make_target(triton.address).connect(control=False)


def test_a_triton_without_model_control_says_how_to_start_it(triton, make_target):
    triton.load_error = (
        grpc.StatusCode.UNAVAILABLE,
        "explicit model load / unload is not allowed if polling is enabled",
    )
    target = make_target(triton.address)
    with pytest.raises(TargetError, match="--model-control-mode=explicit"):
        target.connect()
    target.connect(control=False)  # it may still be observed
    assert not target.can_control()
    assert target.read().success == 10


def test_a_locked_server_wants_its_key(triton, make_target):
    triton.key = "secret"
    with pytest.raises(TargetError, match="wants a control key"):
        make_target(triton.address).connect()
    with pytest.raises(TargetError, match="wants a control key"):
        make_target(triton.address, control_key="wrong").connect()
    target = make_target(triton.address, control_key="secret")
    target.connect()
    assert target.can_control()
    target.apply({"instances": 2})
    triton.load_error = (grpc.StatusCode.PERMISSION_DENIED, "no")
    assert not target.can_control()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:1", r"does not answer \(connection refused\); start the server"),
        ("no-such-host.invalid:8500", r"does not answer \(domain name not found\)"),
        ("localhost", "must be HOST:PORT, e.g. localhost:8500, got 'localhost'"),
        ("localhost:http", "must be HOST:PORT"),
        ("localhost:99999", "must be HOST:PORT"),
        ("http://localhost:8001", "must be HOST:PORT"),
    ],
)
def test_an_address_where_nothing_answers(make_target, address, says):
    with pytest.raises(TargetError, match=says):
        make_target(address).connect()


def test_a_metrics_port_is_told_from_a_grpc_port(metrics, make_target):
    with pytest.raises(TargetError, match="answers, but not gRPC: it looks like an HTTP or metrics port"):
        make_target(f"127.0.0.1:{metrics.server_port}").connect()


def test_a_grpc_server_of_another_service(make_target):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(TargetError, match="speaks gRPC but does not know ServerMetadata"):
        make_target(f"127.0.0.1:{port}").connect()
    server.stop(None).wait()


def test_tls_asked_of_a_server_without(triton, make_target, tmp_path):
    with pytest.raises(TargetError, match=r"cannot read the TLS certificates .*; give a PEM file"):
        make_target(triton.address, tls_ca=str(tmp_path / "none.pem")).connect()


def test_calls_before_connect_are_refused(make_target):
    with pytest.raises(TargetError, match="call connect"):
        make_target("127.0.0.1:1").read()


def test_a_target_that_disappears_is_lost_and_found_again(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.server.stop(None).wait()
    with pytest.raises(TargetLost, match="is lost"):
        target.read()
    with pytest.raises(TargetError, match="does not answer"):
        target.connect()
    again, _ = serve(triton, int(triton.address.rpartition(":")[2]))
    again.start()
    target.connect()
    assert target.read().success == 10
    again.stop(None).wait()


def test_a_model_unloaded_in_mid_run_is_lost(triton, make_target):
    target = make_target(triton.address)
    target.connect()
    triton.configs.clear()
    with pytest.raises(TargetLost):
        target.configuration()


def test_a_metrics_page_that_disappears_is_lost(triton, metrics, make_target):
    target = make_target(triton.address, metrics_url=f"http://127.0.0.1:{metrics.server_port}/metrics")
    target.connect()
    metrics.shutdown()
    metrics.server_close()
    target._counters.page.close()  # the kept connection is still served by its thread
    with pytest.raises(TargetLost, match="does not answer"):
        target.glance()
