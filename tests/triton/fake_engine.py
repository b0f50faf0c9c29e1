"""An engine that is a rule, as TensorRT-LLM answers: one response, or one for each token when it streams.

The model named ``tensorrt_llm_draft`` errs now and then; the other one checks ``draft_input_ids``: it returns those
that it would have written, and one of its own after them.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


def following(tokens, length, errs):
    written = list(tokens)
    for _ in range(length):
        best = 100 + (sum(written[-3:]) * 7 + len(written)) % 50
        written.append(best + 1 if errs and best % 4 == 0 else best)
    return written[len(tokens) :]


class TritonPythonModel:
    def initialize(self, args):
        self._errs = json.loads(args["model_config"])["name"].endswith("_draft")

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for tokens in self._answers(request):
                outputs = [
                    pb_utils.Tensor("output_ids", np.array([[tokens]], np.int32)),
                    pb_utils.Tensor("sequence_length", np.array([[len(tokens)]], np.int32)),
                ]
                sender.send(pb_utils.InferenceResponse(output_tensors=outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answers(self, request):
        prompt = array(request, "input_ids")
        length = array(request, "request_output_len")[0]
        draft = array(request, "draft_input_ids")
        streaming = array(request, "streaming")
        own = following(prompt, length, self._errs)
        if draft is not None:
            assert length == len(draft) + 1
            accepted = 0
            while accepted < len(draft) and draft[accepted] == own[accepted]:
                accepted += 1
            return [own[: accepted + 1]]
        return [[token] for token in own] if streaming and streaming[0] else [own]


def array(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1).tolist()
