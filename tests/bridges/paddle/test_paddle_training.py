# SPDX-License-Identifier: Apache-2.0
"""Compare DataParallel and Fleet of ngd.paddle with one process on the whole batch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import harness

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings about other packages that Paddle uses
    paddle = pytest.importorskip("paddle", reason="PaddlePaddle is not installed")
    import ngd.paddle as dist
    from ngd.paddle import fleet
import ngd

nn, F = paddle.nn, paddle.nn.functional
pytestmark = harness.needs_ranks
MNIST = os.environ.get("NGD_MNIST")
OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda ps: paddle.optimizer.SGD(0.1, ps),
    "Momentum": lambda ps: paddle.optimizer.Momentum(0.05, 0.9, ps, weight_decay=1e-4),
    "AdamW": lambda ps: paddle.optimizer.AdamW(1e-3, parameters=ps, weight_decay=0.01),
}


def run(program: Any, ranks: int, **arguments: Any) -> list[Any]:
    env = {"NGD_MNIST": MNIST} if MNIST else {}
    return [outcome.value for outcome in harness.run(program, ranks, arguments=arguments, env=env)]


def digits(count: int) -> tuple[Any, Any]:
    """Return digits and their classes: MNIST if NGD_MNIST is set, or scikit-learn's."""
    if MNIST:
        train, _ = ngd.data.mnist(Path(MNIST), dtype="uint8")
        pixels, labels = train.columns
    else:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        pixels = pixels.reshape(-1, 8, 8) * 15
    images = pixels[:count].astype("float32")[:, None] / 255
    return paddle.to_tensor(images), paddle.to_tensor(labels[:count].astype("int64"))


def network(side: int) -> Any:
    """Return a small convolutional network. It is smooth, so that rounding selects no branch."""
    rest = side // 2 // 2
    return nn.Sequential(
        nn.Conv2D(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2D(2, 2),
        nn.Conv2D(6, 16, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2D(2, 2),
        nn.Flatten(),
        nn.Linear(16 * rest * rest, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def train_steps(
    model: Any, optimizer: Any, images: Any, labels: Any, part: slice, micro: int
) -> None:
    """Train on batches of 64 images. This process takes `part` of each batch."""
    for begin in range(0, 20 * 64, 64):
        x, t = images[begin : begin + 64][part], labels[begin : begin + 64][part]
        size = len(x) // micro
        for i in range(micro):
            rows = slice(i * size, (i + 1) * size)
            last = i == micro - 1 or not isinstance(model, dist.DataParallel)
            with warnings.catch_warnings() if last else model.no_sync():
                loss = F.cross_entropy(model(x[rows]), t[rows]) / micro
            loss.backward()
        optimizer.step()
        optimizer.clear_grad()


def train(optimizer: str, micro: int, by_fleet: bool) -> Any:
    """Return the relative difference of each weight to training in one process."""
    images, labels = digits(20 * 64)
    weights = []
    for is_reference in (False, True):
        paddle.seed(7 if is_reference else 7 + dist.get_rank())  # rank 0's weights count
        net = network(images.shape[-1])
        opt = OPTIMIZERS[optimizer](net.parameters())
        if is_reference:
            train_steps(net, opt, images, labels, slice(None), 1)
        else:
            fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
            model = fleet.distributed_model(net) if by_fleet else dist.DataParallel(net)
            opt = fleet.distributed_optimizer(opt)
            share = 64 // fleet.worker_num()
            part = slice(share * fleet.worker_index(), share * (fleet.worker_index() + 1))
            train_steps(model, opt, images, labels, part, micro)
        weights.append([p.numpy() for p in net.parameters()])
    first, second = weights
    return [float(abs(a - b).max() / abs(b).max()) for a, b in zip(first, second, strict=True)]


@pytest.mark.parametrize(
    ("optimizer", "micro", "by_fleet"),
    [("SGD", 1, False), ("Momentum", 2, False), ("AdamW", 1, True)],
)
def test_two_ranks_train_as_one_process(optimizer: str, micro: int, by_fleet: bool) -> None:
    for differences in run(train, 2, optimizer=optimizer, micro=micro, by_fleet=by_fleet):
        assert len(differences) == 8
        assert max(differences) < 1e-5


def check_mean_gradients() -> Any:
    """Compare gradients with means of all-gathered gradients.

    The layers have several buckets, shared and transposed weights, two dtypes, and a buffer.
    """
    world = dist.init_parallel_env()
    paddle.seed(world.rank)

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(5, 4)
            self.norm = nn.BatchNorm1D(4)
            self.turned = self.create_parameter([5, 4])
            self.wide = self.create_parameter([4], dtype="float64")
            self.fixed = self.create_parameter([4])
            self.fixed.stop_gradient = True
            self.register_buffer("start", paddle.full([2], float(world.rank)))

        def forward(self, x: Any) -> Any:
            y = self.first(x) + paddle.matmul(x, paddle.matmul(self.turned, paddle.eye(4)))
            z = self.norm(self.first(x) + y) * self.fixed
            return (z.astype("float64") * self.wide).sum() + self.turned.t().sum()

    net = Net()
    model = dist.DataParallel(net, comm_buffer_size=20 / 2**20, last_comm_buffer_size=10 / 2**20)
    assert len(model._gradients.buckets) > 2
    for tensor in [*net.parameters(), net.start]:
        gathered: list[Any] = []
        dist.all_gather(gathered, tensor.detach())
        assert all((each == gathered[0]).all() for each in gathered)
    assert net.start.tolist() == [0, 0]
    assert model.state_dict().keys() == net.state_dict().keys()
    model.set_state_dict(net.state_dict())
    x = paddle.randn([6, 5])
    trained = [p for p in net.parameters() if not p.stop_gradient]
    net(x).backward()  # without DataParallel, so nothing is reduced
    expected = []
    for p in trained:
        gathered = []
        dist.all_gather(gathered, p.grad.detach().contiguous())
        expected.append(np.mean([each.numpy() for each in gathered], 0))
    model.clear_gradients()
    model.scale_loss(model(x)).backward()
    for p, value in zip(trained, expected, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), value, rtol=1e-5, atol=1e-6)
    model(x).backward()  # added to the gradient, and averaged
    for p, value in zip(trained, expected, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), 2 * value, rtol=1e-5, atol=1e-6)
    return True


def test_gradients_are_averaged_over_the_ranks() -> None:
    assert run(check_mean_gradients, 2) == [True, True]
    assert run(check_mean_gradients, 3) == [True] * 3


def train_with_unused_parameters() -> Any:
    world = dist.init_parallel_env()
    parts = nn.LayerList([nn.Linear(2, 1, bias_attr=False) for _ in range(3)])

    class Net(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, x: Any, used: Any) -> Any:
            return sum(self.parts[i](x).sum() for i in used)

    model = dist.DataParallel(Net(), find_unused_parameters=True)
    x = paddle.full([1, 2], 4.0)
    for _ in range(2):
        model(x, [0, 1] if world.rank == 0 else [0]).backward()
    gradients = [None if p.weight.grad is None else p.weight.grad.flatten().tolist() for p in parts]
    with pytest.raises(SystemError) as error:
        dist.DataParallel(Net())(x, [2]).backward()
    assert "find_unused_parameters=True" in str(error.value.__cause__)
    model(x, [0, 1, 2]).backward()
    return gradients


def test_unused_parameters_have_a_mean_gradient() -> None:
    assert run(train_with_unused_parameters, 2) == [[[8.0, 8.0], [4.0, 4.0], None]] * 2


def make_bad_calls() -> Any:
    world = dist.init_parallel_env()
    table = nn.Embedding(4, 2, sparse=True)
    messages = []
    model = dist.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    frozen = nn.Linear(2, 2)
    frozen.bias.stop_gradient = True
    later = dist.DataParallel(frozen)
    frozen.bias.stop_gradient = False

    class Broken(paddle.autograd.PyLayer):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            raise ValueError("broken")

    def fail_in_backward() -> Any:
        """Fail in a backward pass while the last layer's all-reduce is pending, and then train."""
        net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        both = dist.DataParallel(net, last_comm_buffer_size=0, comm_buffer_size=0)
        x = paddle.ones([1, 2])
        y = both(x)
        hidden = Broken.apply(net[0](x))
        with pytest.raises(Exception, match="broken"):
            (y.sum() + hidden.sum()).backward()
        net.clear_gradients()
        both(x * (world.rank + 1)).sum().backward()
        return net[1].bias.grad.tolist()

    calls: list[Any] = [
        lambda: later(paddle.ones([1, 2])),
        lambda: dist.DataParallel(table)(paddle.to_tensor([1])).sum().backward(),
        lambda: dist.DataParallel(nn.ReLU()),
        fail_in_backward,
        lambda: dist.DataParallel(nn.Linear(2, 2 + world.rank)),
        lambda: model(paddle.ones([1, 2])).sum().backward(),
    ]
    for call in calls:
        try:
            messages.append(f"nothing: {call()}")
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error} {error.__cause__}")
    return messages


def test_errors_of_data_parallel() -> None:
    parts = [
        "DataParallel: expected the parameters that were trained when the layer was wrapped; got",
        "DataParallel: expected a dense tensor on the CPU",
        "DataParallel: layers: expected some parameters to train; got none",
        "nothing: [1.0, 1.0]",
        "called different collectives",
        "SystemError",  # the failure has closed the group
    ]
    for got in run(make_bad_calls, 2):
        assert len(got) == len(parts)
        for message, part in zip(got, parts, strict=True):
            assert part in message


def leave_in_a_backward_pass() -> str:
    world = dist.init_parallel_env()
    model = dist.DataParallel(nn.Linear(3, 3))
    loss = model(paddle.ones([1, 3])).sum()
    if world.rank == 1:
        return "left"
    try:
        loss.backward()
    except SystemError as error:
        return f"{type(error.__cause__).__name__}: {error.__cause__}"
    return "nothing"


def test_a_rank_that_leaves_in_a_backward_pass_is_named() -> None:
    first, second = run(leave_in_a_backward_pass, 2)
    assert first.startswith("RankLostError")
    assert "rank 1" in first
    assert second == "left"


def roles_of_fleet() -> list[Any]:
    fleet.init(is_collective=True)
    reduced = fleet.all_reduce(np.array([fleet.worker_index(), 1.0]), mode="mean").tolist()
    fleet.barrier_worker()
    world = [fleet.worker_num(), fleet.is_worker(), fleet.is_server(), fleet.server_num()]
    ends = [name.rpartition(":")[2] for name in fleet.worker_endpoints()]
    own = [fleet.worker_index(), fleet.is_first_worker(), fleet.local_rank(), fleet.node_num()]
    assert fleet.worker_endpoints(to_string=True).count(",") == 1
    return [reduced, world, ends, own]


def test_fleet_gives_roles_and_endpoints() -> None:
    for rank, (reduced, world, ends, own) in enumerate(run(roles_of_fleet, 2)):
        assert reduced == [0.5, 1.0]
        assert world == [2, True, False, 0]
        assert ends == ["0", "1"]
        assert own == [rank, rank == 0, rank, 1]
