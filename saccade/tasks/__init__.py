"""Tasks, one module each: what differs between translation, language modelling, classification, and so on.

The object TASK of a module follows the protocol `saccade.config.task.Task`. A recipe chooses it by its name, which is
the name of the module with "-" for "_". Modules import torch only inside methods, so that reading a recipe stays fast.
"""

from saccade.tasks._base import BaseTask, DocumentTask, mask_word

__all__ = ["BaseTask", "DocumentTask", "mask_word"]
