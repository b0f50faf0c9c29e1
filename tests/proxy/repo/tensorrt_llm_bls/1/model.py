"""Obeys its prompt (``tokens=20 first_ms=50 step_ms=10 stall_after=5 ignore_cancel=1``) and keeps a diary."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]).parent.parent
        self.stops = folder / "stops"
        self.events = (folder / "events.jsonl").open("a", buffering=1)

    def execute(self, requests):
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
            job = (request.request_id(), prompt, request.get_response_sender())
            threading.Thread(target=self.serve, args=job).start()

    def serve(self, request_id, prompt, sender):
        orders = dict(pair.split("=") for pair in prompt.split() if "=" in pair)
        self.note("start", request_id, prompt)
        for n in range(int(orders.get("tokens", 3))):
            stalls = n == int(orders.get("stall_after", -1))
            wait_ms = 60_000 if stalls else int(orders.get("step_ms" if n else "first_ms", 0))
            if self.wait(wait_ms / 1000, request_id, sender, deaf="ignore_cancel" in orders):
                self.note("cancel", request_id, prompt)
                break
            text = np.array([[f"t{n}".encode()]], object)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        self.note("end", request_id, prompt)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def wait(self, wait_s, request_id, sender, *, deaf):
        """Wait, or return true as soon as the request is cancelled."""
        end_s = time.monotonic() + wait_s
        while True:
            if not deaf and (sender.is_cancelled() or (self.stops / request_id).exists()):
                return True
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(0.01, left_s))

    def note(self, event, request_id, prompt):
        line = {"event": event, "id": request_id, "prompt": prompt, "at_s": time.monotonic()}
        self.events.write(json.dumps(line) + "\n")
