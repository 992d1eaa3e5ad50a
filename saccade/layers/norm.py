"""LayerNorm and RMSNorm of torch, which declare that one GPU kernel can add to the residual stream and normalize it."""

from torch import nn


class LayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` (Ba et al. 2016)."""

    fused_add = True  # `add_and_normalize` may use the kernel in training
    subtracts_mean = True


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` (Zhang & Sennrich 2019): no mean is subtracted, and there is no bias."""

    fused_add = True
    subtracts_mean = False
    bias = None
