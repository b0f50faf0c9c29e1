"""Class and tenant on every request of an unmodified tritonclient."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import InferenceServerClientPlugin

from trtkit.conventions import CLASS_HEADER, TENANT_HEADER


class PriorityPlugin(InferenceServerClientPlugin):  # type: ignore[misc]
    """Names the service class (and the tenant) in the metadata of each request.

    ::

        client = tritonclient.grpc.InferenceServerClient("localhost:9001")
        client.register_plugin(PriorityPlugin("interactive"))
    """

    def __init__(self, class_name: str, tenant: str | None = None) -> None:
        self._headers = {CLASS_HEADER: class_name}
        if tenant is not None:
            self._headers[TENANT_HEADER] = tenant

    def __call__(self, request: Any) -> None:
        """Add the headers; what the caller set itself stays."""
        request.headers = {**self._headers, **request.headers}
