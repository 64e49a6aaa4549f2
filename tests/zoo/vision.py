"""Networks for images, written as their libraries or their users write them, and as small as they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

D = 8
CLASSES = 3


def conv_norm(
    enter: int, leave: int, size: int = 3, *, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Module:
    conv = nn.Conv2d(enter, leave, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(leave), *([act()] if act else []))


class BasicBlock(nn.Module):
    def __init__(self, enter: int, leave: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(enter, leave, 3, stride, 1, bias=False), nn.BatchNorm2d(leave)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(leave, leave, 3, 1, 1, bias=False), nn.BatchNorm2d(leave)
        self.downsample = conv_norm(enter, leave, 1, stride=stride, act=None) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    def __init__(self, enter: int, leave: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(enter, leave // 2, 1, bias=False), nn.BatchNorm2d(leave // 2)
        self.conv2, self.bn2 = nn.Conv2d(leave // 2, leave // 2, 3, stride, 1, bias=False), nn.BatchNorm2d(leave // 2)
        self.conv3, self.bn3 = nn.Conv2d(leave // 2, leave, 1, bias=False), nn.BatchNorm2d(leave)
        self.downsample = conv_norm(enter, leave, 1, stride=stride, act=None) if enter != leave else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn3(self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()))
        return (out + identity).relu()


class PreActivation(nn.Module):
    def __init__(self, enter: int, leave: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(enter), nn.Conv2d(enter, leave, 3, stride, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(leave), nn.Conv2d(leave, leave, 3, 1, 1)
        self.match = nn.Conv2d(enter, leave, 1, stride) if enter != leave else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn1(x).relu()
        shortcut = self.match(h) if not isinstance(self.match, nn.Identity) else x
        return self.conv2(self.bn2(self.conv1(h)).relu()) + shortcut


class ResNet(nn.Module):
    def __init__(self, block: Callable[..., nn.Module], *, last_norm: bool = False, depth: int = 2) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, D, 3, 1, 1, bias=False), nn.BatchNorm2d(D)
        self.layer1 = nn.Sequential(*(block(D, D) for _ in range(depth)))
        self.layer2 = nn.Sequential(block(D, 2 * D, 2), *(block(2 * D, 2 * D) for _ in range(depth - 1)))
        self.norm = nn.BatchNorm2d(2 * D) if last_norm else nn.Identity()
        self.fc = nn.Linear(2 * D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.bn1(self.conv1(x)).relu()))
        return self.fc(self.norm(x).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, enter: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(enter), nn.Conv2d(enter, 2 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv2(self.norm2(self.conv1(self.norm1(torch.cat(features, 1)).relu())).relu())


class DenseBlock(nn.ModuleDict):
    def __init__(self, layers: int, enter: int, growth: int) -> None:
        super().__init__({f"denselayer{i + 1}": DenseLayer(enter + i * growth, growth) for i in range(layers)})

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


def densenet() -> nn.Module:
    return nn.Sequential(
        conv_norm(2, 4), DenseBlock(3, 4, 4),
        nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AvgPool2d(2)),
        DenseBlock(2, 8, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


class ChannelsLast(nn.Module):
    """A layer norm over channels, with parameters of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        x = (x - mean) / ((x - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(h)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.downsample_layers = nn.ModuleList([
            nn.Sequential(nn.Conv2d(2, D, 2, 2), ChannelsLast(D)),
            nn.Sequential(ChannelsLast(D), nn.Conv2d(D, 2 * D, 2, 2)),
        ])  # fmt: skip
        self.stages = nn.ModuleList(
            [nn.Sequential(ConvNeXtBlock(D), ConvNeXtBlock(D)), nn.Sequential(ConvNeXtBlock(2 * D))]
        )
        self.norm, self.head = nn.LayerNorm(2 * D), nn.Linear(2 * D, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for shrink, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(shrink(x))
        return self.head(self.norm(x.mean((2, 3))))


class SqueezeExcitation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fc2(F.silu(self.fc1(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class MBConv(nn.Module):
    """An inverted bottleneck; without a shortcut where the width or the resolution changes."""

    def __init__(self, enter: int, leave: int, stride: int = 1, *, excite: bool = True) -> None:
        super().__init__()
        wide = 2 * enter
        self.skip = stride == 1 and enter == leave
        self.block = nn.Sequential(
            conv_norm(enter, wide, 1, act=nn.SiLU), conv_norm(wide, wide, stride=stride, groups=wide, act=nn.SiLU),
            *([SqueezeExcitation(wide)] if excite else []), conv_norm(wide, leave, 1, act=None),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.skip else self.block(x)


def mobile(*, excite: bool) -> nn.Module:
    blocks = [MBConv(4, D, 2, excite=excite), MBConv(D, D, excite=excite), MBConv(D, D, excite=excite)]
    return nn.Sequential(
        conv_norm(2, 4, act=nn.SiLU), *blocks, conv_norm(D, 2 * D, 1, act=nn.SiLU), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * D, CLASSES),
    )  # fmt: skip


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        plan = [(2, 4), (4, 4), None, (4, D), (D, D), None]
        parts: list[nn.Module] = []
        for step in plan:
            parts += (
                [nn.Conv2d(*step, 3, padding=1), nn.BatchNorm2d(step[1]), nn.ReLU(True)] if step else [nn.MaxPool2d(2)]
            )
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(nn.Linear(D * 4, D), nn.ReLU(True), nn.Dropout(), nn.Linear(D, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class Inception(nn.Module):
    def __init__(self, enter: int) -> None:
        super().__init__()
        self.branch1 = conv_norm(enter, 2, 1)
        self.branch2 = nn.Sequential(conv_norm(enter, 2, 1), conv_norm(2, 2))
        self.branch3 = nn.Sequential(conv_norm(enter, 2, 1), conv_norm(2, 2), conv_norm(2, 2))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(enter, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


def inception() -> nn.Module:
    return nn.Sequential(
        conv_norm(2, 4), Inception(4), nn.MaxPool2d(2), Inception(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, CLASSES),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv_norm(2, 4), conv_norm(4, 8)
        self.bottom = nn.Sequential(conv_norm(8, 16), conv_norm(16, 16))
        self.up2, self.join2 = nn.ConvTranspose2d(16, 8, 2, 2), conv_norm(16, 8)
        self.up1, self.join1 = nn.ConvTranspose2d(8, 4, 2, 2), conv_norm(8, 4)
        self.out = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.join2(torch.cat([two, self.up2(x)], 1))
        x = self.join1(torch.cat([one, self.up1(x)], 1))
        return self.out(x).mean((2, 3))


class LinkNet(nn.Module):
    """Like a U-Net, but the encoder's results are added, and enlarged by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_norm(2, 4), conv_norm(4, 4), conv_norm(4, 4)
        self.up2, self.up1, self.out = conv_norm(4, 4), conv_norm(4, 4), nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = F.interpolate(self.bottom(F.max_pool2d(two, 2)), scale_factor=2) + two
        x = F.interpolate(self.up2(x), scale_factor=2) + one
        return self.out(self.up1(x)).mean((2, 3))


class ConvAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU())
        self.decoder = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(), nn.ConvTranspose2d(4, 2, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class ShuffleUnit(nn.Module):
    """Half of the channels pass by, the other half go through the branch, then they are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            conv_norm(half, half, 1), conv_norm(half, half, groups=half, act=None), conv_norm(half, half, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, x = x.chunk(2, 1)
        x = torch.cat([kept, self.branch(x)], 1)
        return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def shufflenet() -> nn.Module:
    return nn.Sequential(
        conv_norm(2, D), ShuffleUnit(D), ShuffleUnit(D), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(D, CLASSES)
    )


class RepVGG(nn.Module):
    """Three parallel linear paths and one activation: a single layer that is merged after training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.point = conv_norm(width, width, act=None), conv_norm(width, width, 1, act=None)
        self.identity = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return (self.dense(x) + self.point(x) + self.identity(x)).relu()


def repvgg() -> nn.Module:
    return nn.Sequential(
        conv_norm(2, 4), RepVGG(4), RepVGG(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )


class SuperResolution(nn.Module):
    """A long shortcut around residual blocks (EDSR)."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(2, 4, 3, 1, 1), nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1), nn.PixelShuffle(2))
        self.body = nn.Sequential(BasicBlock(4, 4), BasicBlock(4, 4), nn.Conv2d(4, 4, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        return self.tail(x + self.body(x))


def picture() -> Tensor:
    return torch.linspace(-1, 1, 2 * 2 * 8 * 8).reshape(2, 2, 8, 8)


VISION: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "ResNet, basic blocks": (lambda: ResNet(BasicBlock), picture),
    "ResNet, bottlenecks": (lambda: ResNet(Bottleneck), picture),
    "ResNet, pre-activation": (lambda: ResNet(PreActivation, last_norm=True), picture),
    "ResNet, pre-activation, a projection last": (lambda: ResNet(PreActivation, last_norm=True, depth=1), picture),
    "DenseNet": (densenet, picture),
    "ConvNeXt": (ConvNeXt, picture),
    "EfficientNet": (lambda: mobile(excite=True), picture),
    "MobileNetV2": (lambda: mobile(excite=False), picture),
    "VGG": (VGG, picture),
    "Inception": (inception, picture),
    "U-Net": (UNet, picture),
    "LinkNet": (LinkNet, picture),
    "convolutional autoencoder": (ConvAutoencoder, picture),
    "ShuffleNet": (shufflenet, picture),
    "RepVGG": (repvgg, picture),
    "EDSR": (SuperResolution, picture),
}
