"""Durable functions: what one is, what its journal tells, and what things are called. Pure, but for the definition."""

from __future__ import annotations

from holdfast.processes.state import ProcessState, ProcessStatus, is_process_journal

__all__ = ["ProcessState", "ProcessStatus", "is_process_journal"]
