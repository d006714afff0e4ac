"""The tasks, a module a chapter; each holds a list TASKS."""
