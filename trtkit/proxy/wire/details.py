"""An error's details as ``google.rpc`` has them: clients of OTLP and others retry only what says when."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtkit.proxy.ending import Ending

DETAILS_TRAILER = "grpc-status-details-bin"
DOMAIN = "trtkit"


def status_details(ending: Ending, class_name: str, request_id: str) -> bytes:
    """Write a ``google.rpc.Status`` with ErrorInfo, and RetryInfo where a retry makes sense."""
    import grpc
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status(code=grpc.StatusCode[ending.status].value[0], message=ending.message)
    facts = {"class": class_name, "request_id": request_id}
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason=ending.reason.value.upper(),
            domain=DOMAIN,
            metadata={key: value for key, value in facts.items() if value},
        )
    )
    if ending.pushback_ms is not None and ending.pushback_ms >= 0:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(ending.pushback_ms)
        status.details.add().Pack(retry)
    return bytes(status.SerializeToString())
