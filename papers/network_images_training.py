"""A convolutional classifier with batch normalisation, trained by SGD and followed by posteriors."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import skip_init
from torch.optim.swa_utils import update_bn

from boxloop.numeric import generator, normal, spawn
from boxloop.weights import LastLayerPosterior, Layout, last_layer_laplace, weight_decay
from papers.network_images_data import Scene
from papers.uci_networks_training import Point, Run, followers

PRIORS = tuple(10.0**power for power in range(-2, 5))
"""Precisions of a last layer among which the evidence chooses."""


@dataclass(frozen=True)
class Setting:
    """How networks are trained.

    Args:
        channels: of each convolution; below 0 where pixels are then joined two by two.
        hidden: what enters the last layer.
        batch: images of a step.
        burn_in: steps before weights are observed.
        steps: steps after that.
        every: steps between two observations.
        rate: of learning, constant.
        momentum: of SGD.
        rank: directions of a posterior.
        prior_precision: alpha, of every weight.
        gathered: training images by which statistics of BatchNorm are gathered anew.
    """

    channels: tuple[int, ...]
    hidden: int
    batch: int
    burn_in: int
    steps: int
    every: int
    rate: float = 0.05
    momentum: float = 0.9
    rank: int = 10
    prior_precision: float = 1.0
    gathered: int = 1000


def classifier(shape: Sequence[int], classes: int, setting: Setting, stream: Generator) -> nn.Sequential:
    """Convolutions of 3 x 3, each with BatchNorm; one hidden layer; starts of He et al. (2015) from ``stream``.

    Args:
        shape: of an image, (C, H, W).
        classes: outputs, logits.
        setting: sizes.
        stream: of the start.
    """
    before, height, width = shape
    layers: list[nn.Module] = []
    for channels in setting.channels:
        after = abs(channels)
        layers += [
            skip_init(nn.Conv2d, before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        ]
        if channels < 0:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        before = after
    layers += [nn.Flatten(), skip_init(nn.Linear, before * height * width, setting.hidden), nn.ReLU()]
    layers.append(skip_init(nn.Linear, setting.hidden, classes))
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for module in net:
            if isinstance(module, nn.Conv2d | nn.Linear):
                size = math.sqrt(2.0 / module.weight[0].numel())
                module.weight.copy_(size * normal(tuple(module.weight.shape), stream, torch.float32))
            if isinstance(module, nn.Linear):
                module.bias.zero_()
    return net


def trained(scene: Scene, setting: Setting, seed: int, *, laplace: bool) -> Run:
    """One network, from its start to its posteriors.

    Args:
        scene: on the device where it is to be trained.
        setting: how.
        seed: of the start, the orders and the posteriors.
        laplace: whether the law of its last layer is wanted.

    Raises:
        FloatingPointError: weights that are not finite.
    """
    x, y = scene.x["train"], scene.y["train"]
    start, first, annealing, following, watching = spawn(generator(seed), 5)
    net = classifier(x.shape[1:], scene.classes, setting, start).to(x.device)
    layout = Layout.of(net)
    _train(net, scene, setting, setting.burn_in, first)
    cold = copy.deepcopy(net)
    _train(cold, scene, setting, setting.steps, annealing, lambda done: 1.0 - done)
    followed = followers(net, setting.rank, watching)

    def observe(step: int) -> None:
        if step % setting.every == 0:
            for posterior in followed.values():
                posterior.observe()

    _train(net, scene, setting, setting.steps, following, observe=observe)
    for one in (net, cold):  # statistics of the weights that it has, not of those it has passed through
        update_bn(gathering(scene, setting).split(setting.batch), one)
        one.eval()
    law = _laplace(net, x, y) if laplace else None
    points = [Point(one, layout, _read(layout, one)) for one in (net, cold)]
    return Run(points[0], points[1], followed, law)


def gathering(scene: Scene, setting: Setting) -> Tensor:
    """Training images for the statistics of BatchNorm."""
    return scene.x["train"][: setting.gathered]


def _laplace(net: nn.Module, x: Tensor, y: Tensor) -> LastLayerPosterior:
    """At the weights that SGD left, under the prior of most evidence: under a vague one it is far too wide."""
    laws = (last_layer_laplace(net, x, y, "classification", alpha, mode=False) for alpha in PRIORS)
    return max(laws, key=lambda law: law.log_evidence)


def _read(layout: Layout, net: nn.Module) -> Tensor:
    like = next(net.parameters())
    found = layout.read(net, torch.empty(layout.size, dtype=like.dtype, device=like.device))
    if not bool(found.isfinite().all()):
        raise FloatingPointError("weights are not finite: the learning rate is too large")
    return found


def _train(
    net: nn.Module,
    scene: Scene,
    setting: Setting,
    steps: int,
    stream: Generator,
    rate: Callable[[float], float] = lambda done: 1.0,
    observe: Callable[[int], None] = lambda step: None,
) -> None:
    """So many steps of SGD on the mean cross-entropy, from no momentum; rows in a new order every epoch."""
    x, y = scene.x["train"], scene.y["train"]
    n = len(x)
    optimiser = torch.optim.SGD(
        net.parameters(),
        lr=setting.rate,
        momentum=setting.momentum,
        weight_decay=weight_decay(setting.prior_precision, n, "mean_log"),
    )
    net.train()
    step = 0
    while step < steps:
        order = torch.randperm(n, generator=stream).to(x.device)
        for some in order.split(setting.batch)[: n // min(setting.batch, n)]:  # whole batches
            if step == steps:
                break
            for group in optimiser.param_groups:
                group["lr"] = setting.rate * rate(step / steps)
            images = x[some]
            if scene.mirror and bool(torch.rand((), generator=stream) < 0.5):
                images = images.flip(-1)
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images), y[some]).backward()
            optimiser.step()
            step += 1
            observe(step)
