"""Which layers should my sites share? My own network and training loop, plus five lines of playerfl."""

from copy import deepcopy

import torch
from torch import nn

import playerfl


class ResidualBlock(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def conv(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()


blocks = ResidualBlock(*conv(8, 8)), ResidualBlock(*conv(8, 8))
net = nn.Sequential(*conv(1, 8), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
profiles = {}
for number, site in enumerate(("north", "south", "west")):
    images, labels = torch.randn(256, 1, 12, 12) + number, torch.randint(4, (256,))
    model = deepcopy(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    probe = playerfl.SensitivityProbe(model, example=images[:2])
    with probe.attach(optimizer):
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    profiles[site] = probe.profile()

recommendation = playerfl.recommend(profiles, net)
print(recommendation)
playerfl.recommendation_figure(recommendation)[0].savefig("recommendation.png")
