"""Experiments of the papers behind boxloop: each table and figure, the paper's number beside ours.

One file is one experiment and defines ``experiment(options) -> Report``; ``python -m papers`` lists and runs them.
"""
