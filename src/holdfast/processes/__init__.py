"""Durable functions: what one is, what its journal tells, and what things are called. Pure, but for the definition."""

from __future__ import annotations

from holdfast.names import is_process_journal
from holdfast.processes.state import ProcessState, ProcessStatus

__all__ = ["ProcessState", "ProcessStatus", "is_process_journal"]
