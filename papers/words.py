"""Former names of `papers.verdicts`, for the experiments that still import them."""

from papers import verdicts

held = verdicts.judge_claim
met = verdicts.judge_target
standard_error = verdicts.standard_error
percent = verdicts.percent
