"""Each table and figure of the documents as a command: the document's number beside ours.

An experiment is a file of this folder that defines ``experiment(options) -> Report``; ``boxloop replicate`` finds it.
"""

from boxloop.replicate.experiment import Experiment, Finding, Options, Report

__all__ = ["Experiment", "Finding", "Options", "Report"]
