"""The second output of a conversion: a Hugging Face folder in ModelOpt's form.

TensorRT-LLM's PyTorch back end, vLLM and TensorRT Edge-LLM load it. Weights and scales are those of a written
TensorRT-LLM checkpoint, so both outputs compute with the same numbers.
"""

from __future__ import annotations

from trtkit.checkpoint.hf_export.export import HfExportReport as HfExportReport
from trtkit.checkpoint.hf_export.export import convert_to_hf as convert_to_hf
from trtkit.checkpoint.hf_export.export import export_hf as export_hf
