# SPDX-License-Identifier: Apache-2.0
"""Layers of neural networks, with PyTorch's names and layouts of variables.

    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
    with nn.training(nn.Random(seed=1)) as state:
        loss = ops.mean(ops.softmax_cross_entropy(model(x), y))
    updates = [optimizer.minimize(loss, model.parameters()), state.updates]
    step = ngd.compile([x, y], [loss], updates)
    evaluate = ngd.compile([x], [model(x)])

A call of a model builds a graph. Both graphs here use the same variables.

Modules take the arguments of PyTorch's modules of the same names. Each module documents where it
differs. MultiHeadAttention takes other arguments in its call.
"""

from .._util.signature_errors import check_public_names as _check_public_names
from . import initializers
from .activations import (
    ELU,
    GELU,
    GLU,
    SELU,
    Flatten,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    Softsign,
    Tanh,
)
from .attention import MultiHeadAttention
from .containers import ModuleDict, ModuleList, Sequential
from .convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .linear import Dropout, Dropout1d, Dropout2d, Dropout3d, Embedding, EmbeddingBag, Linear
from .losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    CTCLoss,
    GaussianNLLLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    TripletMarginLoss,
)
from .modes import Random, Training, current, evaluation, training
from .module import Module
from .normalization import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from .parameter import Buffer, Parameter
from .parametrizations import remove_parametrizations, spectral_norm, weight_norm
from .pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from .recurrent import GRU, LSTM
from .resampling import Fold, PixelShuffle, PixelUnshuffle, Unfold, Upsample
from .state_dict import Keys
from .transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "ELU",
    "GELU",
    "GLU",
    "GRU",
    "LSTM",
    "SELU",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Buffer",
    "CTCLoss",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "Flatten",
    "Fold",
    "GaussianNLLLoss",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "Identity",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "Keys",
    "L1Loss",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "Random",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softsign",
    "Tanh",
    "Training",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TripletMarginLoss",
    "Unfold",
    "Upsample",
    "current",
    "evaluation",
    "initializers",
    "remove_parametrizations",
    "spectral_norm",
    "training",
    "weight_norm",
]

_check_public_names(globals())
