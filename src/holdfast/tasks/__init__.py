"""Background work: tool calls that go on after the model has had an answer, each with a journal of its own."""

from holdfast.tasks.state import RUN, TaskCall, TaskState, TaskStatus, is_task_id, task_id, task_key

__all__ = ["RUN", "TaskCall", "TaskState", "TaskStatus", "is_task_id", "task_id", "task_key"]
