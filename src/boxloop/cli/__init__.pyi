from .completion import SHELLS as SHELLS
from .errors import EXIT_CODES as EXIT_CODES
from .fit import STARTS as STARTS
from .group import COMMANDS as COMMANDS, main
from .names import MODELS as MODELS, catalogue as catalogue
from .network import read_problem as read_problem
from .output import echo_styled as echo_styled, echo_table as echo_table, echo_text as echo_text
from .posterior import advice as advice
from .relate_judge import explained as explained, told_right as told_right, worries as worries
from .relate_read import Side as Side, read_side as read_side, set_apart as set_apart

__all__ = ["main"]
