"""Takes stop requests and notes the ids for the text model beside it."""

from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.stops = Path(args["model_repository"]).parent.parent / "stops"
        self.stops.mkdir(exist_ok=True)

    def execute(self, requests):
        for request in requests:
            if pb_utils.get_input_tensor_by_name(request, "stop") is not None:
                (self.stops / request.request_id()).touch()
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
