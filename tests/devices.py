"""Devices for tests that compare what each of them computes: the CPU, and a GPU where there is one."""

import pytest
import torch

DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.cuda)] if torch.cuda.is_available() else [])]
