"""Takes and gives what Triton's vLLM back end does; it counts letters, and keeps a diary of what reached it."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.diary = (Path(args["model_repository"]) / "events.jsonl").open("a", buffering=1)

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.serve, args=(request, request.get_response_sender())).start()

    def serve(self, request, sender):
        def first(name, default):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return default if tensor is None else tensor.as_numpy()[0]

        prompt = first("text_input", None).decode()
        # As the back end has it: the request's own parameters count only where the tensor is not given.
        sampling = json.loads(first("sampling_parameters", request.parameters()))
        count, stream = int(sampling.get("max_tokens", 16)), bool(first("stream", False))
        self.note("start", prompt, sampling)
        text = "" if stream or first("exclude_input_in_output", False) else prompt
        for index in range(count):
            time.sleep(0.002)
            if sender.is_cancelled():
                self.note("cancel", prompt, sampling)
                break
            text += chr(ord("a") + index % 26)
            if stream or index == count - 1:
                output = pb_utils.Tensor("text_output", np.array([text.encode()], object))
                sender.send(pb_utils.InferenceResponse([output]))
                text = ""
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def note(self, event, prompt, sampling):
        self.diary.write(json.dumps({"event": event, "prompt": prompt, "sampling": sampling}) + "\n")
