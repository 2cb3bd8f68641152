"""Topics of news: latent Dirichlet allocation by coordinate ascent (Blei, Ng & Jordan 2003).

    phi_k ~ Dirichlet(0.1),   theta_d ~ Dirichlet(0.1),   z_i ~ Categorical(theta_d[i]),   w_i ~ Categorical(phi_z[i])

A row is a token: the document it is in, and its word. The corpus is that of the package lda: 395 articles of Reuters,
without the commonest words. A tenth of the tokens of each article are held out; what is predicted of them comes from
the others in the same article.
"""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from rich import box
from rich.console import Console
from rich.table import Table

import langevin as lv
from langevin import plots
from langevin.errors import SettingError

NUM_TOPICS = 10
CONCENTRATION = 0.1
HELD_OUT = 0.1
NUM_WORDS_SHOWN = 9


class Corpus(NamedTuple):
    """Tokens, and what their numbers mean."""

    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]
    vocabulary: tuple[str, ...]
    num_documents: int


class Answer(NamedTuple):
    """What was found: the topics with the most tokens first."""

    topics: list[list[str]]
    shares: np.ndarray
    perplexity: float
    baseline: float
    bounds: np.ndarray
    seconds: float


def reuters(seed: int = 0) -> Corpus:
    """The corpus of the package lda, as tokens.

    Raises:
        SettingError: If the package is not installed.
    """
    try:
        datasets: Any = importlib.import_module("lda.datasets")
    except ImportError as error:
        raise SettingError("The corpus is in the package lda: pip install lda.") from error
    counts = np.asarray(datasets.load_reuters())
    return corpus_of(counts, tuple(datasets.load_reuters_vocab()), seed)


def corpus_of(counts: np.ndarray, vocabulary: tuple[str, ...], seed: int = 0) -> Corpus:
    """Tokens of a table of counts, document by word; some of them held out."""
    doc, word = np.nonzero(counts)
    tokens = {name: np.repeat(column, counts[doc, word]) for name, column in (("doc", doc), ("word", word))}
    held_out = np.random.default_rng(seed).random(len(tokens["doc"])) < HELD_OUT
    train, test = ({name: column[chosen] for name, column in tokens.items()} for chosen in (~held_out, held_out))
    return Corpus(train, test, vocabulary, len(counts))


def model_of(corpus: Corpus, num_topics: int = NUM_TOPICS) -> Callable[..., None]:
    """The model as a NumPyro program."""
    num_words = len(corpus.vocabulary)

    def model(doc: Any, word: Any) -> None:
        with numpyro.plate("topics", num_topics):
            phi: Any = numpyro.sample("phi", dist.Dirichlet(jnp.full(num_words, CONCENTRATION)))
        with numpyro.plate("documents", corpus.num_documents):
            theta: Any = numpyro.sample("theta", dist.Dirichlet(jnp.full(num_topics, CONCENTRATION)))
        with numpyro.plate("tokens", doc.shape[0]):
            z = numpyro.sample("z", dist.Categorical(theta[doc]))
            numpyro.sample("word", dist.Categorical(phi[z]), obs=word)

    return model


def perplexity(theta: np.ndarray, phi: np.ndarray, tokens: dict[str, np.ndarray]) -> float:
    """The reciprocal of the geometric mean of the probabilities of some tokens."""
    chances = np.sum(theta[tokens["doc"]] * phi.T[tokens["word"]], axis=1)
    return float(np.exp(-np.mean(np.log(chances))))


def answer_of(corpus: Corpus, num_topics: int = NUM_TOPICS, seed: int = 0, progress: bool = False) -> Answer:
    """Fits, and looks at the topics and at the tokens that were held out."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lv.LangevinWarning)  # q is judged by the tokens that were held out.
        method = lv.CAVI(tolerance=1.0)
        fit = lv.fit(
            model_of(corpus, num_topics),
            corpus.train,
            method,
            num_draws=1,
            num_chains=1,
            seed=seed,
            progress=progress,
        )
    seconds = time.perf_counter() - began
    parameters = fit.data_tree["parameters"].to_dataset()
    counts, words = (parameters[f"{site}.concentration"].values for site in ("theta", "phi"))
    theta, phi = (table / table.sum(axis=1, keepdims=True) for table in (counts, words))
    # All documents are the mixture of one topic: the frequencies of words.
    alone = np.bincount(corpus.train["word"], minlength=phi.shape[1]) + CONCENTRATION
    baseline = perplexity(np.ones((len(theta), 1)), (alone / alone.sum())[None], corpus.test)
    sizes = (words - CONCENTRATION).sum(axis=1)
    shares = sizes / sizes.sum()
    order = np.argsort(-shares)
    topics = [[corpus.vocabulary[i] for i in np.argsort(-phi[k])[:NUM_WORDS_SHOWN]] for k in order]
    bounds = fit.elbo.values.ravel()
    return Answer(topics, shares[order], perplexity(theta, phi, corpus.test), baseline, bounds, seconds)


def run(folder: Path, seed: int = 0, progress: bool = True) -> Answer:
    """Fits, prints the topics, and writes the picture to `folder`."""
    plots.check()
    corpus = reuters()
    answer = answer_of(corpus, NUM_TOPICS, seed, progress)
    _print_table(corpus, answer)
    Console().print(f"wrote {_draw(folder, answer)}", soft_wrap=True)
    return answer


def _print_table(corpus: Corpus, answer: Answer) -> None:
    size = f"{corpus.num_documents} articles, {len(corpus.train['doc']):,} tokens"
    table = Table(title=f"Topics of {size}, by CAVI", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("share", justify="right")
    table.add_column("most probable words")
    for share, words in zip(answer.shares, answer.topics, strict=True):
        table.add_row(f"{100 * share:.0f} %", " ".join(words))
    console = Console()
    console.print(table)
    console.print(
        f"Perplexity of {len(corpus.test['doc']):,} tokens held out: {answer.perplexity:,.0f}, and "
        f"{answer.baseline:,.0f} by the frequencies of words alone. "
        f"{len(answer.bounds)} sweeps; {answer.seconds:.0f} s with compilation."
    )


def _draw(folder: Path, answer: Answer) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "topics.png"
    with plots.figure(path, columns=1) as axes:
        sweeps = np.arange(1, len(answer.bounds) + 1)
        axes.plot(sweeps, answer.bounds, color=plots.RED)
        # The first sweeps gain so much that nothing else would be seen.
        low, high = answer.bounds[min(3, len(answer.bounds) - 1)], answer.bounds[-1]
        axes.set(title="The bound never falls", xlabel="sweep", ylabel="bound, nats", xscale="log")
        axes.set_ylim(low, high + 0.05 * (high - low) + 1.0)
    return path
