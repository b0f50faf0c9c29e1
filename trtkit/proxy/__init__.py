"""The SLO-aware gRPC proxy: one front door for a Triton server that runs an LLM.

``admission`` decides (pure), ``wire`` reads and writes Triton's messages, the modules beside them do the I/O.
"""
