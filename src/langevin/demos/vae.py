"""A variational autoencoder with two latent dimensions (Kingma & Welling 2014; Masegosa & Nielsen 2023).

    z_i ~ N(0, I_2),   x_i ~ Bernoulli(logits = decoder(z_i)),   q(z_i) = N(encoder(x_i))

The decoder is 2 -> 64 -> 256 -> pixels with ReLU, the encoder the same backwards. Its weights are point estimates,
`numpyro.param` of the program. On MNIST where a folder with its files is given, on scikit-learn's digits otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from rich.console import Console

import langevin as lv
from langevin import plots
from langevin.demos import images as greys
from langevin.demos.images import Images

HIDDEN = (64, 256)
LATENT = 2
BATCH_SIZE = 128


def digits() -> Images:
    """scikit-learn's digits, black and white."""
    return greys.digits().binarised(7.5 / 16)


def mnist(folder: str | Path) -> Images:
    """MNIST, black and white."""
    return greys.mnist(folder).binarised(0.5)


def layers(sizes: tuple[int, ...], key: Any) -> list[tuple[jax.Array, jax.Array]]:
    """Weights of a network, by He's rule."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        (jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def network(weights: Any, x: Any) -> Any:
    """ReLU between the layers, nothing after the last."""
    for matrix, offset in weights[:-1]:
        x = jax.nn.relu(x @ matrix + offset)
    matrix, offset = weights[-1]
    return x @ matrix + offset


def model(x: Any) -> None:
    """The decoder."""
    pixels = x.shape[-1]
    weights = numpyro.param("decoder", lambda key: layers((LATENT, *HIDDEN, pixels), key))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(LATENT), 1.0).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=network(weights, z)).to_event(1), obs=x)


def encoder(x: Any) -> None:
    """The guide, an encoder: it computes q(z) from the row."""
    sizes = (x.shape[-1], *HIDDEN[::-1], 2 * LATENT)
    weights = numpyro.param("encoder", lambda key: layers(sizes, key))
    mean, log_scale = jnp.split(network(weights, x), 2, axis=-1)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("z", dist.Normal(mean, jnp.exp(log_scale)).to_event(1))


def train(images: Images, num_epochs: int, seed: int = 0, progress: bool = True, **settings: Any) -> lv.Fit:
    """The fit. A draw of z for every row is reported; the networks are in `fit.guide.values`."""
    num_steps = num_epochs * -(-len(images.train) // BATCH_SIZE)
    chosen: dict[str, Any] = {"learning_rate": 2e-3} | settings
    method = lv.VI(encoder, num_steps=num_steps, **chosen)
    counts: dict[str, Any] = {"num_chains": 1, "num_draws": 1, "batch_size": BATCH_SIZE}
    return lv.fit(model, {"x": images.train}, method, seed=seed, progress=progress, **counts)


def bound(fit: lv.Fit, x: np.ndarray, num_draws: int = 10, seed: int = 0) -> float:
    """The bound of these rows, for each, with the divergence in closed form."""
    values = fit.guide.values

    @jax.jit
    def total(key: Any) -> Any:
        mean, log_scale = jnp.split(network(values["encoder"], x), 2, axis=-1)
        q = dist.Normal(mean, jnp.exp(log_scale))
        z = q.sample(key)
        log_p = dist.Bernoulli(logits=network(values["decoder"], z)).log_prob(x)
        return jnp.mean(jnp.sum(log_p, axis=-1) - jnp.sum(dist.kl_divergence(q, dist.Normal(0.0, 1.0)), axis=-1))

    return float(np.mean([total(key) for key in jax.random.split(jax.random.key(seed), num_draws)]))


def run(folder: Path, seed: int = 0, progress: bool = True, data: Path | None = None) -> lv.Fit:
    """Trains, prints the bounds, and writes the pictures to `folder`. `data` is the folder of MNIST's files."""
    plots.check()
    images = mnist(data) if data else digits()
    epochs = 30 if data else 200
    fit = train(images, epochs, seed, progress)
    console = Console()
    name = "MNIST" if data else "scikit-learn's digits"
    console.print(f"Variational autoencoder, {len(images.train):,} images of {name}, {epochs} epochs:")
    for part, x in (("training", images.train), ("test", images.test)):
        console.print(f"  bound of a {part} image: {bound(fit, x):.2f}")
    folder.mkdir(parents=True, exist_ok=True)
    for path in (_draw_space(folder, fit, images), _draw_grid(folder, fit, images)):
        console.print(f"wrote {path}", soft_wrap=True)
    return fit


def _draw_space(folder: Path, fit: lv.Fit, images: Images) -> Path:
    path = folder / "vae_latent_space.png"
    means = np.asarray(network(fit.guide.values["encoder"], images.test))[:, :LATENT]
    with plots.figure(path) as axes:
        shown = axes.scatter(*means.T, c=images.test_labels, cmap="tab10", s=6, vmin=-0.5, vmax=9.5)
        axes.figure.colorbar(shown, ax=axes, ticks=range(10))
        axes.set(title="Test images in the latent space", xlabel="z0", ylabel="z1")
    return path


def _draw_grid(folder: Path, fit: lv.Fit, images: Images, count: int = 15) -> Path:
    """What the decoder makes of a grid of z, at the quantiles of the prior."""
    path = folder / "vae_decoded_grid.png"
    quantiles = np.asarray(dist.Normal(0.0, 1.0).icdf(np.linspace(0.03, 0.97, count)))
    z = np.stack(np.meshgrid(quantiles, quantiles[::-1]), axis=-1).reshape(-1, LATENT)
    pixels = np.asarray(jax.nn.sigmoid(network(fit.guide.values["decoder"], z)))
    side = images.side
    picture = pixels.reshape(count, count, side, side).swapaxes(1, 2).reshape(count * side, count * side)
    with plots.figure(path) as axes:
        axes.imshow(picture, cmap="gray_r")
        axes.set(title="Decoded grid", xticks=[], yticks=[], xlabel="z0", ylabel="z1")
    return path
