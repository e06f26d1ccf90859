"""Three topics of short documents from pairs and triples of words: no starts, and an error bar on every probability.

python docs/gallery/topics_with_error_bars.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from boxloop import MultinomialMixture
from boxloop.figures import COLOURS, INK, add_legend, dress, new_figure, png
from boxloop.fit import match_topics

PLAY, SKY, BUSINESS = ["goal", "match", "team", "coach"], ["rain", "wind", "storm", "sun"], ["bank", "loan"]
WORDS = [*PLAY, *SKY, *BUSINESS, "price", "market", "today", "report"]
TOPICS = {
    "sport": [18, 16, 18, 8, 3, 2, 1, 4, 1, 1, 2, 1, 13, 12],
    "weather": [1, 1, 1, 1, 22, 16, 12, 18, 1, 1, 1, 1, 15, 9],
    "money": [1, 1, 2, 1, 1, 1, 2, 1, 17, 13, 18, 22, 8, 12],
}
SHARES = np.array([0.5, 0.3, 0.2])

rng = np.random.default_rng(2)
truth = np.array(list(TOPICS.values())) / 100.0
about = rng.choice(3, size=3000, p=SHARES)
X = rng.multinomial(rng.integers(4, 9, size=3000), truth[about])

fits = {
    "moments": MultinomialMixture(3, method="spectral", random_state=0).fit(X),
    "moments, then EM": MultinomialMixture(3, init_params="spectral", random_state=0).fit(X),
}
figure = new_figure(12.0, 5.0)
panels = figure.subplots(1, 3, sharey=True)
bars = {}
for j, (name, fit) in enumerate(fits.items()):
    errors = fit.standard_errors(X)["probabilities"]
    order = match_topics(*(fit.model_.family.probability.new_tensor(p) for p in (truth, fit.probabilities_)))
    found, bars[name] = fit.probabilities_[order], errors[order]
    inside = abs(found - truth) < 2 * bars[name]
    print(f"{name}: {inside.sum()} of {inside.size} probabilities within two standard errors of the truth")
    for h, axes in enumerate(panels):
        place = np.arange(len(WORDS)) + 0.18 * (2 * j - 1)
        look = {"fmt": "os"[j], "color": COLOURS[j], "markersize": 5, "label": name}
        axes.errorbar(found[h], place, xerr=2 * bars[name][h], **look)

ratio = np.median(bars["moments"] / bars["moments, then EM"])
print(f"error bars of moments are {ratio:.2f} times as wide as those of EM")

for axes, (name, share, probability) in zip(panels, zip(TOPICS, SHARES, truth, strict=True), strict=True):
    axes.plot(
        probability, range(len(WORDS)), "|", color=INK, markersize=16, markeredgewidth=1.6, label="truth"
    )
    dress(axes, f"{name}, {share:.0%} of documents", "probability of a word")
    axes.set_yticks(range(len(WORDS)), WORDS)
    axes.set_xlim(-0.02, 0.27)
panels[0].invert_yaxis()
add_legend(panels[0], "center right", title="bars: two standard errors")

Path(__file__).with_suffix(".png").write_bytes(png(figure, dpi=100))
