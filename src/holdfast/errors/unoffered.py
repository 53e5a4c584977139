"""A model was asked for something that its provider does not offer."""

from __future__ import annotations

from holdfast.errors.models import ModelError


class NotOffered(ModelError):
    """A setting asks for what this provider or model does not have. Nothing was sent."""

    def __init__(self, setting: str, model: str, advice: str) -> None:
        super().__init__(f"{setting} is not offered by {model}: {advice}", kind="not_offered")
        self.setting = setting
        self.model = model
        self.advice = advice
