"""Workers: take jobs off the queue in micro-batches, embed, search, reply."""

import sys

# Importing OpenVINO would otherwise send a usage report.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
