"""The shipped models in PyTorch: the names, shapes and order of worker/model/models/*.textproto.

Modules are registered in forward order, so that named_parameters() lists the tensors in the order of our layout.
`flattened` has each dense weight that reads a flattened image, and the (channels, height, width) of that image, because
our memory order of such a weight is (out, height, width, channels). `dropout_layers` maps each dropout to the number of
its layer in the layer file.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F


class Logreg(nn.Module):
    """Logistic regression."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels * height * width, classes)
        self.flattened = {"fc1.weight": (channels, height, width)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc1(torch.flatten(x, 1))


class Mlp(nn.Module):
    """Two hidden layers of 1024."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels * height * width, 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, classes)
        self.flattened = {"fc1.weight": (channels, height, width)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Lenet5(nn.Module):
    """LeCun et al. 1998 with ReLU and max pooling."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        image = (16, (height // 2 - 4) // 2, (width // 2 - 4) // 2)
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(image[0] * image[1] * image[2], 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        self.flattened = {"fc1.weight": image}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class MnistCnn(nn.Module):
    """The network of PyTorch's MNIST example."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        image = (64, (height - 4) // 2, (width - 4) // 2)
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(image[0] * image[1] * image[2], 128)
        self.fc2 = nn.Linear(128, classes)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.flattened = {"fc1.weight": image}
        self.dropout_layers = {"dropout1": 3, "dropout2": 6}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout2(x))


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: Optional[nn.Module] = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class Resnet20(nn.Module):
    """He et al. 2016, section 4.2, with projection shortcuts."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        del height, width  # global average pooling takes any size
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[BasicBlock(16, 16, 1) for _ in range(3)])
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1), BasicBlock(32, 32, 1))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2), BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.fc = nn.Linear(64, classes)
        self.flattened: Dict[str, Tuple[int, int, int]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean(dim=(2, 3)))


MODELS: Dict[str, Any] = {"logreg": Logreg, "mlp": Mlp, "lenet5": Lenet5, "mnist_cnn": MnistCnn, "resnet20": Resnet20}


def create(name: str, channels: int, height: int, width: int, classes: int) -> Any:
    if name not in MODELS:
        raise ValueError(f"--model={name} is not one of {', '.join(MODELS)}")
    model: Any = MODELS[name](channels, height, width, classes)
    model.dropout_layers = getattr(model, "dropout_layers", {})
    return model
