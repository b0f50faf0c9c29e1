"""The back ends ``rtx`` and ``onnx``: one ONNX graph, compiled by TensorRT for RTX or run by ONNX Runtime as it is."""
