"""Record what a model said, and play it back: real traffic for tests, without a network and without a key.

    model = RecordedModel("weather.json", hf.model("anthropic:claude-sonnet-4-6"), mode="auto")

The first run asks the provider and writes each exchange to the file; later runs are served from it, through the same
dialect, byte for byte as it came. Request *n* gets response *n*; a request that differs from the recorded one is an
error that says where. The file has the format ``recording/1``; `redaction` says what never gets into it.
"""

from __future__ import annotations

from holdfast.errors import RecordingDiffers, RecordingEnded, RecordingInvalid
from holdfast.models.recorded.transport import Mode, RecordedModel

__all__ = ["Mode", "RecordedModel", "RecordingDiffers", "RecordingEnded", "RecordingInvalid"]
