"""``trtkit health`` against servers that answer, do not answer, and are not there."""

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2


@pytest.fixture
def server():
    """Start servers that say whether they are ready; return the address."""
    running = []

    def start(*, ready: bool) -> str:
        reply = service_pb2.ServerReadyResponse(ready=ready).SerializeToString()
        answer = grpc.unary_unary_rpc_method_handler(lambda request, context: reply)
        found = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.method_handlers_generic_handler(
            "inference.GRPCInferenceService", {"ServerReady": answer}
        )
        found.add_generic_rpc_handlers((handler,))
        port = found.add_insecure_port("127.0.0.1:0")
        found.start()
        running.append(found)
        return f"127.0.0.1:{port}"

    yield start
    for each in running:
        each.stop(None)


def test_a_ready_server_is_exit_0(trtkit, server):
    assert trtkit("health", server(ready=True))[0] == 0


def test_a_loading_server_is_exit_3(trtkit, server):
    code, _, err = trtkit("health", server(ready=False))
    assert code == 3
    assert "still loading" in err


def test_nobody_there_is_exit_3_within_the_time(trtkit):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        code, _, err = trtkit("health", f"127.0.0.1:{closed.getsockname()[1]}", "--timeout-s", 1)
    assert code == 3
    assert "is not ready" in err


def test_what_is_no_address_is_refused(trtkit):
    assert trtkit("health", "somewhere")[0] == 2
