from .columns import SelectedColumns as SelectedColumns, read_columns as read_columns
from .completion import SHELLS as SHELLS
from .console import echo_styled as echo_styled, echo_table as echo_table, echo_text as echo_text
from .errors import EXIT_CODES as EXIT_CODES
from .fit import STARTS as STARTS
from .group import COMMANDS as COMMANDS, main
from .names import MODELS as MODELS, load_catalogue as load_catalogue
from .network import read_supervised_table as read_supervised_table
from .posterior import advise_on_chains as advise_on_chains
from .two_views import (
    explained_share as explained_share,
    hold_out_rows as hold_out_rows,
    label_accuracy as label_accuracy,
    merge_concerns as merge_concerns,
)

__all__ = ["main"]
