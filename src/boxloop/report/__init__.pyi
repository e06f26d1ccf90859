from .answers import advise_next_steps as advise_next_steps, answer_questions as answer_questions
from .candidates import (
    BAYESIAN as BAYESIAN,
    DEEP as DEEP,
    Candidate as Candidate,
    autoencoder_candidate as autoencoder_candidate,
    find_autoencoder_obstacle as find_autoencoder_obstacle,
    list_candidates as list_candidates,
)
from .examine import (
    ActiveComponents as ActiveComponents,
    Finalist as Finalist,
    Trial as Trial,
    examine_table as examine_table,
    make_test_functions as make_test_functions,
    name_columns as name_columns,
    select_criticised_part as select_criticised_part,
)
from .explain import correlate_with_codes as correlate_with_codes
from .network_findings import (
    LEVEL as LEVEL,
    Network as Network,
    NetworkFindings as NetworkFindings,
    SupervisedTable as SupervisedTable,
    judge_network as judge_network,
    summarise_scores as summarise_scores,
)
from .network_page import (
    explain_scores as explain_scores,
    format_settings as format_settings,
    list_settings as list_settings,
    network_to_dict as network_to_dict,
    render_network_page as render_network_page,
)
from .outliers import (
    conditional_log_density as conditional_log_density,
    drop_small_components as drop_small_components,
    find_outliers as find_outliers,
    find_small_components as find_small_components,
)
from .pages import (
    escape_markdown as escape_markdown,
    format_p_value as format_p_value,
    load_template as load_template,
    tabulate_candidates as tabulate_candidates,
)
from .pictures import draw_criticism as draw_criticism, plot_candidates as plot_candidates
from .read import (
    BINARY as BINARY,
    CONTINUOUS as CONTINUOUS,
    COUNTS as COUNTS,
    describe_columns as describe_columns,
    fingerprint_table as fingerprint_table,
    infer_kind as infer_kind,
    read_table as read_table,
)
from .report import (
    Report as Report,
    check_replaceable as check_replaceable,
    list_page_files as list_page_files,
    make_report as make_report,
    report_on_table as report_on_table,
    report_to_dict as report_to_dict,
    spell_command as spell_command,
)
from .text import escape_controls as escape_controls, to_json_values as to_json_values
from .verdict import (
    Autoencoder as Autoencoder,
    Misfit as Misfit,
    SetAside as SetAside,
    Verdict as Verdict,
    is_adequate as is_adequate,
    judge_findings as judge_findings,
    list_misfits as list_misfits,
)

__all__ = []
