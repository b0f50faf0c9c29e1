"""The gauges that TensorRT-LLM's back end exports, fed from the engine's statistics."""

import triton_python_backend_utils as pb_utils

FAMILIES = {
    # family: (description, label, label values)
    "nv_trt_llm_request_metrics": (
        "TRT LLM request metrics",
        "request_type",
        ("active", "max", "scheduled", "waiting"),
    ),
    "nv_trt_llm_kv_cache_block_metrics": (
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "fraction"),
    ),
}


class Gauges:
    """One gauge per label value."""

    def __init__(self, model, version, max_requests):
        self._max_requests = max_requests
        self._families = []  # a metric lives no longer than its family
        self._gauges = {}
        for name, (description, label, values) in FAMILIES.items():
            family = pb_utils.MetricFamily(
                name=name, description=description, kind=pb_utils.MetricFamily.GAUGE
            )
            self._families.append(family)
            for value in values:
                labels = {"model": model, "version": version, label: value}
                self._gauges[label, value] = family.Metric(labels=labels)

    def refresh(self, stats):
        """Set every gauge from the engine's statistics."""
        used, total = stats.kv_blocks_used, stats.kv_blocks_max
        self._set(
            "request_type",
            active=stats.active + stats.waiting,
            max=self._max_requests,
            scheduled=stats.active,
            waiting=stats.waiting,
        )
        self._set(
            "kv_cache_block_type",
            max=total,
            used=used,
            free=total - used,
            tokens_per=stats.tokens_per_block,
            fraction=used / total if total else 0.0,
        )

    def close(self):
        """Let the metrics go while the stub can still tell Triton; at the interpreter's end it would crash."""
        self._gauges.clear()
        self._families.clear()

    def _set(self, label, **values):
        for value, amount in values.items():
            self._gauges[label, value].set(amount)
