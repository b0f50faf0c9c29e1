"""Class and tenant on every request of an unmodified tritonclient."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import InferenceServerClientPlugin

from trtkit.conventions import CLASS_HEADER, SESSION_HEADER, TENANT_HEADER


class PriorityPlugin(InferenceServerClientPlugin):  # type: ignore[misc]
    """Names the service class in the metadata of each request, and the tenant and the session where there are some.

    ::

        client = tritonclient.grpc.InferenceServerClient("localhost:9001")
        client.register_plugin(PriorityPlugin("interactive"))
    """

    def __init__(self, class_name: str, tenant: str | None = None, session: str | None = None) -> None:
        named = {CLASS_HEADER: class_name, TENANT_HEADER: tenant, SESSION_HEADER: session}
        self._headers = {header: value for header, value in named.items() if value is not None}

    def __call__(self, request: Any) -> None:
        """Add the headers; what the caller set itself stays."""
        request.headers = {**self._headers, **request.headers}
