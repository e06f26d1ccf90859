from .advice import advise as advise
from .candidates import (
    BAYESIAN as BAYESIAN,
    DEEP as DEEP,
    Candidate as Candidate,
    autoencoder as autoencoder,
    candidates as candidates,
    no_autoencoder as no_autoencoder,
)
from .codes import correlations as correlations, given_others as given_others
from .columns import (
    BINARY as BINARY,
    CONTINUOUS as CONTINUOUS,
    COUNTS as COUNTS,
    describe as describe,
    kind_of as kind_of,
)
from .examine import examine as examine, functions as functions
from .findings import Finalist as Finalist, Trial as Trial, named as named
from .gaps import gap_picture as gap_picture
from .in_use import (
    ComponentsInUse as ComponentsInUse,
    criticised as criticised,
    small as small,
    without_small as without_small,
)
from .lines import write_lines as write_lines
from .making import make_report as make_report, report_on as report_on, spelled as spelled
from .misfits import Misfit as Misfit, misfits as misfits
from .network_judge import (
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
from .outlying import outlying as outlying
from .pages import escape_markdown as escape_markdown, template as template
from .pictures import plot_candidates as plot_candidates
from .plain import plain as plain
from .read import fingerprint as fingerprint, read_table as read_table
from .sentences import escape_controls as escape_controls
from .siblings import check_replaceable as check_replaceable, page_files as page_files
from .tables import candidate_table as candidate_table
from .verdict import (
    Autoencoder as Autoencoder,
    SetAside as SetAside,
    Verdict as Verdict,
    is_adequate as is_adequate,
    judge as judge,
)
from .whole import Report as Report, facts as facts

__all__ = []
