"""Secrets: lent to the code that performs an effect, and kept out of everything that is written, shown or logged."""

from __future__ import annotations
