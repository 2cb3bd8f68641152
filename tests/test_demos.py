"""The demos: their data, what they print, and what they find."""

import gc
import sys

import numpy as np
import pytest

import langevin as lv
from langevin.demos import classify, gaussian, images, mnist, network, topics


def test_the_curve_is_that_of_the_text():
    data = network.make_data(5000)
    assert data["x"].min() >= 0
    assert data["x"].max() <= 0.5
    assert network.curve(np.array([0.25]), np.zeros(1))[0] == pytest.approx(0.25 + 0.3)
    # To first order in e, where the curve is steep: a noise of 0.02, to four standard errors.
    slope = 1 + 0.6 * np.pi * np.cos(2 * np.pi * data["x"]) + 1.2 * np.pi * np.cos(4 * np.pi * data["x"])
    steep = np.abs(slope) > 2
    residual = (data["y"] - network.curve(data["x"], np.zeros(5000)))[steep] / slope[steep]
    assert np.std(residual) == pytest.approx(network.NOISE, rel=4 / np.sqrt(2 * steep.sum()) + 0.05)


def test_the_moons_are_two_half_circles():
    data = classify.make_data(4000)
    assert data["y"].mean() == 0.5
    middle = np.where(data["y"][:, None] == 0, [0.0, 0.0], [1.0, 0.5])
    radius = np.linalg.norm(data["x"] - middle, axis=1)
    # A radius of 1 with noise in two directions: 1 + noise**2 / 2 on average.
    assert radius.mean() == pytest.approx(1 + classify.NOISE**2 / 2, abs=4 * classify.NOISE / np.sqrt(4000))
    near = np.linalg.norm(classify.far_rows()[:, None] - data["x"][None], axis=-1).min()
    assert near > 2


def test_the_network_demo_prints_and_draws(tmp_path, monkeypatch, capsys):
    quick = {"MAP": network.METHODS["MAP"], "NUTS": (lv.NUTS, {"num_draws": 40, "num_warmup": 80, "num_chains": 2})}
    monkeypatch.setattr(network, "METHODS", quick)
    monkeypatch.setattr(network, "WIDTH", 5)
    monkeypatch.setenv("COLUMNS", "140")
    point, nuts = network.run(tmp_path / "pictures", progress=False)
    assert (tmp_path / "pictures" / "network.png").stat().st_size > 10_000
    out = capsys.readouterr().out
    assert "NUTS" in out
    assert "network.png" in out
    # A point does not know what it does not know.
    assert point.inside == 0
    assert point.beside == (0, 0)
    assert min(nuts.beside) > 2 * nuts.inside > 0


@pytest.mark.slow
def test_the_classify_demo_prints_and_draws(tmp_path, monkeypatch, capsys):
    quick = {kind: {"point": "map", "posterior": "nuts"} for kind in classify.METHODS}
    monkeypatch.setattr(classify, "METHODS", quick)
    monkeypatch.setattr(classify, "WIDTH", 4)
    monkeypatch.setattr(classify, "COUNTS", {"num_draws": 60, "num_warmup": 100, "num_chains": 2})
    monkeypatch.setenv("COLUMNS", "140")
    answers = classify.run(tmp_path, progress=False)
    assert len(list(tmp_path.glob("classify_*.png"))) == 2
    assert "logistic regression" in capsys.readouterr().out
    for point, posterior in (answers[:2], answers[2:]):
        assert posterior.far < point.far
        assert posterior.accuracy > 0.8


def test_the_images_are_those_of_their_files(tmp_path):
    generator = np.random.default_rng(0)
    for kind, count in (("train", 3), ("t10k", 2)):
        pixels = generator.integers(0, 256, (count, 4, 4), dtype=np.uint8)
        head = bytes([0, 0, 8, 3]) + b"".join(int(n).to_bytes(4, "big") for n in pixels.shape)
        (tmp_path / f"{kind}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        labels = np.arange(count, dtype=np.uint8)
        head = bytes([0, 0, 8, 1]) + count.to_bytes(4, "big")
        (tmp_path / f"{kind}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    found = images.mnist(tmp_path)
    np.testing.assert_allclose(found.test * 255, pixels.reshape(2, 16), atol=1e-4)
    assert found.train_labels.tolist() == [0, 1, 2]
    shuffled = mnist.shuffled(found)
    np.testing.assert_array_equal(np.sort(shuffled, axis=1), np.sort(found.test, axis=1))
    assert (shuffled != found.test).any()
    black = found.binarised(0.5)
    np.testing.assert_array_equal(black.test, pixels.reshape(2, 16) > 127)
    with pytest.raises(lv.DataError, match="no train-images"):
        images.mnist(tmp_path / "elsewhere")


def test_the_table_of_digits_has_every_method():
    found = mnist.contestants(1000, mnist.SMALL)
    # Without the temperature, which a row has in its name where the posterior is tempered.
    kinds = [one.name.split(", T = ")[0] for one in found]
    assert kinds[0] == "MAP"
    assert {"SWAG", "pSGLD", "SGHMC", "cyclical SGHMC", "BBB, scale mixture"} < set(kinds)
    tempered = [one for one in found if one.temperature != 1]
    assert tempered
    assert all(one.name.endswith(f", T = {one.temperature:g}") for one in tempered)
    steps = -(-1000 // mnist.SMALL.batch_size)
    assert found[0].method.num_steps == mnist.SMALL.climb * steps


def test_a_contestant_learns_digits():
    found = images.digits()
    few = found._replace(train=found.train[:1000], train_labels=found.train_labels[:1000])
    point = lv.MAP(num_steps=600, learning_rate=0.02)
    one = mnist.Contestant(name="MAP", method=point, settings={"num_chains": 1}, epochs=600)
    answer = mnist.answer_of(one, few, width=20)
    assert answer.error < 0.15
    assert answer.auroc > 0.6
    assert answer.seconds_an_epoch == answer.seconds / 600


def test_what_is_derived_of_the_gaussian_model_is_what_one_writes_by_hand():
    data = gaussian.make_data()
    by_hand = gaussian.coordinate_ascent(data["x"])
    fit = lv.fit(gaussian.model, data, lv.CAVI(tolerance=1e-12), num_draws=10, progress=False)
    q = fit.data_tree["parameters"]
    # The rows are given in single precision.
    np.testing.assert_allclose((q["mu.loc"].item(), q["mu.scale"].item()), by_hand.mu, rtol=1e-6)
    concentration, rate = q["gamma.concentration"].item(), q["gamma.rate"].item()
    np.testing.assert_allclose((concentration / rate, concentration**0.5 / rate), by_hand.gamma, rtol=1e-6)


def planted(num_documents=60, length=50, num_words=30, seed=0):
    """Documents of three topics, each of which has words of its own; a document has one or two of them."""
    generator = np.random.default_rng(seed)
    phi = np.kron(np.eye(3), np.full(num_words // 3, 3 / num_words))
    theta = generator.dirichlet(np.full(3, 0.2), num_documents)
    counts = np.stack([generator.multinomial(length, row) for row in theta @ phi])
    return topics.corpus_of(counts, tuple(f"{k}_{i}" for k in range(3) for i in range(num_words // 3))), theta, phi


def test_tokens_are_those_of_the_table():
    counts = np.array([[2, 0, 1], [0, 3, 0]])
    found = topics.corpus_of(counts, ("a", "b", "c"))
    again = np.zeros_like(counts)
    for tokens in (found.train, found.test):
        np.add.at(again, (tokens["doc"], tokens["word"]), 1)
    np.testing.assert_array_equal(again, counts)
    even = topics.perplexity(np.full((2, 4), 0.25), np.full((4, 3), 1 / 3), found.train)
    assert even == pytest.approx(3)


def test_the_topics_demo_finds_planted_topics_prints_and_draws(tmp_path, monkeypatch, capsys):
    corpus, theta, phi = planted()
    monkeypatch.setattr(topics, "reuters", lambda: corpus)
    monkeypatch.setattr(topics, "NUM_TOPICS", 3)
    monkeypatch.setenv("COLUMNS", "140")
    answer = topics.run(tmp_path / "pictures", progress=False)
    assert (tmp_path / "pictures" / "topics.png").stat().st_size > 5_000
    assert "held out" in capsys.readouterr().out
    # The words of a topic are of one of those that were planted.
    assert sorted("".join({word[0] for word in topic}) for topic in answer.topics) == ["0", "1", "2"]
    assert np.all(np.diff(answer.bounds) > -1e-9 * abs(answer.bounds[-1]))
    truth = topics.perplexity(theta, phi, corpus.test)
    # Of a few hundred tokens whose log-probabilities have an sd of about 1, and proportions that are known roughly.
    assert truth < answer.perplexity * 1.05
    assert answer.perplexity < 1.25 * truth
    assert answer.perplexity < 0.6 * answer.baseline


def test_the_corpus_is_said_to_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "lda.datasets", None)
    with pytest.raises(lv.SettingError, match="pip install lda"):
        topics.reuters()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_corpus_is_that_of_reuters():
    # The package leaves its file open.
    corpus = topics.reuters()
    gc.collect()
    assert corpus.num_documents == 395
    assert len(corpus.train["doc"]) + len(corpus.test["doc"]) == 84_010
    assert len(corpus.vocabulary) == 4258
