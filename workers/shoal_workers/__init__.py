"""The workers, which take jobs from the queue in micro-batches, embed texts, search and reply."""

import sys

# An import of OpenVINO would otherwise send a usage report.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
