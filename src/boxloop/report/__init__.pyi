from .answers import advise as advise, write_lines as write_lines
from .candidates import (
    BAYESIAN as BAYESIAN,
    DEEP as DEEP,
    Candidate as Candidate,
    autoencoder as autoencoder,
    candidates as candidates,
    no_autoencoder as no_autoencoder,
)
from .examine import (
    Finalist as Finalist,
    Trial as Trial,
    examine as examine,
    functions as functions,
    named as named,
)
from .explain import correlations as correlations, given_others as given_others
from .making import (
    Report as Report,
    check_replaceable as check_replaceable,
    facts as facts,
    make_report as make_report,
    page_files as page_files,
    report_on as report_on,
    spelled as spelled,
)
from .network_findings import (
    LEVEL as LEVEL,
    Network as Network,
    NetworkFindings as NetworkFindings,
    Problem as Problem,
    judge_network as judge_network,
    measures as measures,
)
from .network_page import (
    as_page as as_page,
    chosen as chosen,
    network_facts as network_facts,
    note as note,
    spoken as spoken,
)
from .outliers import (
    ComponentsInUse as ComponentsInUse,
    criticised as criticised,
    outlying as outlying,
    small as small,
    without_small as without_small,
)
from .pages import (
    candidate_table as candidate_table,
    escape_markdown as escape_markdown,
    template as template,
)
from .pictures import gap_picture as gap_picture, plot_candidates as plot_candidates
from .read import (
    BINARY as BINARY,
    CONTINUOUS as CONTINUOUS,
    COUNTS as COUNTS,
    describe as describe,
    fingerprint as fingerprint,
    kind_of as kind_of,
    read_table as read_table,
)
from .text import escape_controls as escape_controls, plain as plain
from .verdict import (
    Autoencoder as Autoencoder,
    Misfit as Misfit,
    SetAside as SetAside,
    Verdict as Verdict,
    is_adequate as is_adequate,
    judge as judge,
    misfits as misfits,
)

__all__ = []
