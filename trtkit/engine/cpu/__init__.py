"""The CPU back end: a TensorRT-LLM checkpoint as an OpenVINO model, run by OpenVINO GenAI's in-flight batching."""

import sys

# OpenVINO reports its import to Google Analytics and keeps an identifier in $HOME/intel; where this package is missing
# it uses a stub that does nothing. Every import of OpenVINO in trtkit comes after this line.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
