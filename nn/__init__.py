# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`go.nn`: parts of nets. A net is a Module; its parameters are arrays in its attributes, and its
call is eager code, or part of what is traced.
"""

from . import init
from .attention import MultiHeadAttention
from .convolution import AdaptiveAvgPool, AvgPool, Conv, ConvTranspose, MaxPool
from .layers import ACTIVATIONS, Activation, Dense, Dropout, Embedding, Flatten, Sequential
from .module import Module, parameter
from .norms import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from .recurrent import GRU, LSTM

__all__ = [
    "ACTIVATIONS", "GRU", "LSTM", "Activation", "AdaptiveAvgPool", "AvgPool", "BatchNorm", "Conv",
    "ConvTranspose", "Dense", "Dropout", "Embedding", "Flatten", "GroupNorm", "LayerNorm",
    "MaxPool", "Module", "MultiHeadAttention", "RMSNorm", "Sequential", "init", "parameter",
]  # fmt: skip
