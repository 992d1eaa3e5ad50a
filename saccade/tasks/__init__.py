"""Tasks, one module each: what differs between translating, language modelling, labelling, and so on.

The object TASK of a module follows the protocol `saccade.config.task.Task`; a recipe chooses it by the module's name.
"""

from saccade.tasks._base import BaseTask, DocumentTask, hide_word

__all__ = ["BaseTask", "DocumentTask", "hide_word"]
