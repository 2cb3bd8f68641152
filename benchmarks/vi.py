"""How fast is variational inference? A step on a million rows, a small fit from beginning to end, an epoch of a VAE.

    python benchmarks/vi.py [--quick]

Every contestant runs in a fresh process. A step or an epoch is what a longer run takes more than a shorter one, after a
first run has compiled: the median of several. MNIST is read from the folder that LANGEVIN_MNIST names; without it, the
VAE gets random images, and no bound is reported.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import machine
import numpy as np

NUM_COLUMNS = 50
BATCH_SIZE = 1000
SMALL_ROWS = 1000
SMALL_STEPS = 2000
VAE_BATCH = 128
VAE_EPOCHS = 5
VAE_ROUNDS = 6
RATE = 1e-3


def logistic_data(num_rows: int) -> dict[str, np.ndarray]:
    """Standard normal columns, and labels of a logistic regression."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_rows, NUM_COLUMNS)).astype(np.float32)
    weights = generator.normal(size=NUM_COLUMNS) / 4
    y = (generator.random(num_rows) < 1 / (1 + np.exp(-x @ weights))).astype(np.float32)
    return {"x": x, "y": y}


def logistic(x, y):
    """The program; the rows that it is called with are all rows, or a minibatch."""
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_subsampled(x, y):
    """The same for NumPyro: a plate that subsamples, as its documentation shows."""
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0], subsample_size=BATCH_SIZE) as rows:
        numpyro.sample("y", dist.Bernoulli(logits=x[rows] @ w), obs=y[rows])


def our_logistic(data: dict, batch_size: int | None) -> Callable[[int], None]:
    """`lv.fit` with so many steps."""
    import warnings

    from langevin import VI
    from langevin import fit as lv_fit

    warnings.simplefilter("ignore")

    def run(num_steps: int) -> None:
        lv_fit(logistic, data, VI(num_steps=num_steps), batch_size=batch_size, num_draws=250, progress=False)

    return run


def numpyro_logistic(data: dict, batch_size: int | None, guide_name: str = "AutoNormal") -> Callable[[int], None]:
    """`SVI.run`, and draws from the guide."""
    import jax
    from numpyro.infer import SVI, Trace_ELBO, autoguide
    from numpyro.optim import Adam

    program = logistic if batch_size is None else logistic_subsampled
    guide = getattr(autoguide, guide_name)(program)
    svi = SVI(program, guide, Adam(RATE), Trace_ELBO())
    arrays = jax.tree.map(jax.numpy.asarray, data)

    def run(num_steps: int) -> None:
        result = svi.run(jax.random.key(0), num_steps, **arrays, progress_bar=False)
        draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(1000,))
        jax.block_until_ready((result, draws))

    return run


def fused_logistic(data: dict, batch_size: int) -> Callable[[int], None]:
    """What one would write by hand for this model: one scan, minibatches as slices, the divergence in closed form."""
    import jax
    import jax.numpy as jnp
    import optax

    x, y = jnp.asarray(data["x"]), jnp.asarray(data["y"])
    num_rows = len(x)
    optimizer = optax.adam(RATE)

    def loss(parameters, noise, xs, ys):
        mean, log_scale = parameters
        w = mean + jnp.exp(log_scale) * noise
        logits = xs @ w
        log_likelihood = jnp.sum(ys * logits - jnp.logaddexp(0, logits))
        divergence = jnp.sum((jnp.exp(2 * log_scale) + mean**2 - 1) / 2 - log_scale)
        return (divergence - num_rows / batch_size * log_likelihood) / num_rows

    @functools.partial(jax.jit, static_argnums=0)
    def scan(num_steps, x, y, key):
        def step(carry, key):
            parameters, state = carry
            slice_key, noise_key = jax.random.split(key)
            start = jax.random.randint(slice_key, (), 0, num_rows - batch_size)
            xs, ys = (jax.lax.dynamic_slice_in_dim(array, start, batch_size) for array in (x, y))
            noise = jax.random.normal(noise_key, (NUM_COLUMNS,))
            value, slope = jax.value_and_grad(loss)(parameters, noise, xs, ys)
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(parameters, updates), state), value

        parameters = (jnp.zeros(NUM_COLUMNS), jnp.full(NUM_COLUMNS, jnp.log(0.1)))
        return jax.lax.scan(step, (parameters, optimizer.init(parameters)), jax.random.split(key, num_steps))

    return lambda num_steps: jax.block_until_ready(scan(num_steps, x, y, jax.random.key(0)))


LOGISTIC = {
    "langevin": our_logistic,
    "by hand": fused_logistic,
    "numpyro, AutoNormal": numpyro_logistic,
    "numpyro, AutoDiagonalNormal": functools.partial(numpyro_logistic, guide_name="AutoDiagonalNormal"),
}


def images(num_rows: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Binarised training and test images, and whether they are real."""
    folder = os.environ.get("LANGEVIN_MNIST")
    if folder:
        from vae_peer import mnist_images

        train, test = mnist_images(folder)
        return train[:num_rows], test, True
    generator = np.random.default_rng(0)
    return (generator.random((num_rows, 784)) < 0.2).astype(np.float32), np.zeros((100, 784), np.float32), False


def our_vae(train: np.ndarray) -> tuple[Callable[[int], object], Callable[[object, np.ndarray], float]]:
    """The demo's program and guide, with its settings."""
    import warnings

    from langevin.demos import vae

    warnings.simplefilter("ignore")
    rows = vae.Images(train, np.zeros(0), train[:0], np.zeros(0))
    return lambda epochs: vae.train(rows, epochs, progress=False), vae.bound


def numpyro_vae(train: np.ndarray) -> tuple[Callable[[int], object], Callable[[object, np.ndarray], float]]:
    """The same program and guide with `SVI.update` in a compiled loop over an epoch, as NumPyro's example does."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import SVI, TraceMeanField_ELBO

    from langevin.demos import vae

    num_batches = len(train) // VAE_BATCH

    def scaled(function):
        return numpyro.handlers.scale(function, 1.0 / VAE_BATCH)

    svi = SVI(scaled(vae.model), scaled(vae.encoder), numpyro.optim.Adam(RATE), TraceMeanField_ELBO())
    data = jnp.asarray(train)

    @jax.jit
    def epoch(state, order, data):
        def body(i, carry):
            total, state = carry
            rows = jax.lax.dynamic_slice_in_dim(order, i * VAE_BATCH, VAE_BATCH)
            state, loss = svi.update(state, data[rows])
            return total + loss, state

        return jax.lax.fori_loop(0, num_batches, body, (0.0, state))

    first = svi.init(jax.random.key(0), data[:VAE_BATCH])

    def run(epochs):
        state = first
        for number in range(epochs):
            order = jax.random.permutation(jax.random.key(number), len(train))
            _, state = jax.block_until_ready(epoch(state, order, data))
        return svi.get_params(state)

    return run, lambda params, test: vae.bound(_Fitted(params), test)


def numpyro_run_vae(train: np.ndarray) -> tuple[Callable[[int], object], Callable[[object, np.ndarray], float]]:
    """The same networks by `SVI.run`, with a plate that subsamples: NumPyro's one call for minibatches."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, TraceMeanField_ELBO

    from langevin.demos import vae

    def program(x):
        weights = numpyro.param("decoder", lambda key: vae.layers((vae.LATENT, *vae.HIDDEN, x.shape[-1]), key))
        with numpyro.plate("rows", x.shape[0], subsample_size=VAE_BATCH) as rows:
            z = numpyro.sample("z", dist.Normal(jnp.zeros(vae.LATENT), 1.0).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=vae.network(weights, z)).to_event(1), obs=x[rows])

    def guide(x):
        sizes = (x.shape[-1], *vae.HIDDEN[::-1], 2 * vae.LATENT)
        weights = numpyro.param("encoder", lambda key: vae.layers(sizes, key))
        with numpyro.plate("rows", x.shape[0], subsample_size=VAE_BATCH) as rows:
            mean, log_scale = jnp.split(vae.network(weights, x[rows]), 2, axis=-1)
            numpyro.sample("z", dist.Normal(mean, jnp.exp(log_scale)).to_event(1))

    def scaled(function):
        return numpyro.handlers.scale(function, 1.0 / len(train))

    svi = SVI(scaled(program), scaled(guide), numpyro.optim.Adam(RATE), TraceMeanField_ELBO())
    data = jnp.asarray(train)

    def run(epochs):
        steps = epochs * (len(train) // VAE_BATCH)
        return jax.block_until_ready(svi.run(jax.random.key(0), steps, data, progress_bar=False)).params

    return run, lambda params, test: vae.bound(_Fitted(params), test)


class _Fitted:
    """Parameters under the name that the demo's bound reads."""

    def __init__(self, values):
        self.guide = self
        self.values = values


VAE = {"langevin": our_vae, "numpyro": numpyro_vae, "numpyro, SVI.run": numpyro_run_vae}


def worker(question: str, contestant: str, *numbers: str) -> dict:
    """Answers one question for one contestant."""
    return {"step": _step, "small": _small, "vae": _vae}[question](contestant, *map(int, numbers))


def _step(contestant: str, num_rows: int, short: int, long: int, repeats: int) -> dict:
    run = LOGISTIC[contestant](logistic_data(num_rows), BATCH_SIZE)
    return {"seconds_a_step": _difference(run, short, long, repeats)}


def _small(contestant: str, num_rows: int, num_steps: int) -> dict:
    data = logistic_data(num_rows)
    began = time.perf_counter()
    run = LOGISTIC[contestant](data, None)
    run(num_steps)
    cold = time.perf_counter() - began
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        run(num_steps)
        seconds.append(time.perf_counter() - began)
    return {"cold": cold, "warm": statistics.median(seconds)}


def _vae(contestant: str, num_rows: int, epochs: int, repeats: int) -> dict:
    train, test, real = images(num_rows)
    run, bound = VAE[contestant](train)
    seconds = _difference(run, 1, 5, repeats)
    return {"seconds_an_epoch": seconds, "bound": bound(run(epochs), test) if real else None}


def _difference(run: Callable[[int], object], short: int, long: int, repeats: int) -> float:
    """What a step more costs: the median of several differences, after runs of both lengths have compiled."""
    found = []
    for number in range(repeats + 1):
        seconds = []
        for length in (short, long):
            began = time.perf_counter()
            run(length)
            seconds.append(time.perf_counter() - began)
        if number:
            found.append((seconds[1] - seconds[0]) / (long - short))
    return statistics.median(found)


def pyro(num_rows: int, epochs: int, repeats: int) -> dict:
    """Pyro's VAE, in an environment of its own."""
    python = machine.environment("pyro", ("torch==2.13.0",), ("pyro-ppl", "numpy"))
    command = [python, machine.HERE / "vae_peer.py", *map(str, (num_rows, epochs, VAE_BATCH, RATE, repeats))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(quick: bool) -> dict:
    """All three questions."""
    num_rows, repeats = (100_000, 1) if quick else (1_000_000, 3)
    rounds = 1 if quick else 3
    lengths = {"numpyro, AutoNormal": (20, 60), "numpyro, AutoDiagonalNormal": (20, 60)}
    steps: dict[str, list[float]] = {name: [] for name in LOGISTIC}
    small: dict[str, list[dict]] = {name: [] for name in LOGISTIC if name != "by hand"}
    epochs: dict[str, list[dict]] = {name: [] for name in (*VAE, "pyro")}
    for _, name in itertools.product(range(rounds), LOGISTIC):
        short, long = lengths.get(name, (2_000, 42_000))
        steps[name].append(machine.fresh("vi.py", "step", name, num_rows, short, long, repeats)["seconds_a_step"])
        print(f"  step, {name}: {1e6 * steps[name][-1]:.0f} us", file=sys.stderr, flush=True)
    for _, name in itertools.product(range(rounds), small):
        small[name].append(machine.fresh("vi.py", "small", name, SMALL_ROWS, SMALL_STEPS))
        print(f"  small, {name}: {small[name][-1]}", file=sys.stderr, flush=True)
    size, count = (6_000, 1) if quick else (60_000, VAE_EPOCHS)
    # The two that are near one another take turns more often.
    for number, name in itertools.product(range(1 if quick else VAE_ROUNDS), epochs):
        if number >= 2 and name not in ("langevin", "numpyro"):
            continue
        found = pyro(size, count, 1) if name == "pyro" else machine.fresh("vi.py", "vae", name, size, count, 1)
        epochs[name].append(found)
        print(f"  vae, {name}: {found}", file=sys.stderr, flush=True)
    return {
        "num_rows": num_rows,
        "step": {name: statistics.median(found) for name, found in steps.items()},
        "small": {
            name: {phase: statistics.median(run[phase] for run in found) for phase in ("cold", "warm")}
            for name, found in small.items()
        },
        "vae": {
            name: {
                "seconds": statistics.median(run["seconds_an_epoch"] for run in found),
                "bound": None if found[0]["bound"] is None else statistics.median(run["bound"] for run in found),
            }
            for name, found in epochs.items()
        },
        "vae_rows": size,
        "vae_epochs": count,
        "all": {"step": steps, "small": small, "vae": epochs},
        "versions": epochs["pyro"][0]["versions"],
    }


if __name__ == "__main__":
    machine.main(measure, worker)
