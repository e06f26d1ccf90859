"""``boxloop show``: what a model file holds."""

from __future__ import annotations

from pathlib import Path

from boxloop.cli import console, shared


@shared.with_examples("boxloop show model.boxloop", "boxloop show model.boxloop --json")
@shared.model_argument
@shared.json_option
def command(model: Path, json_to: str | None) -> None:
    """Print what a model file holds."""
    from boxloop.cli import models
    from boxloop.cli.parts import list_parameters, tabulate_parts
    from boxloop.numeric import format_number

    console.check_outputs([json_to], model)
    estimator = models.load_any(model)
    if isinstance(estimator, models.TwoViews):
        from boxloop.cli.two_views import show_views

        show_views(model, estimator, json_to)
        return
    if isinstance(estimator, models.Networks):
        from boxloop.cli.network import show_network

        show_network(model, estimator, json_to)
        return
    kind, names = type(estimator).__name__, models.get_column_names(estimator)
    options = estimator.get_params(deep=False)
    held = {"model": model, "estimator": kind, "options": options, "columns": names}

    def show() -> None:
        lines = [
            (f"{len(names)} columns", models.join_first(names)),
            (models.name_objective(estimator), format_number(models.get_objective(estimator), 6)),
        ]
        console.echo_facts(f"{model}: {kind}", models.summarise_fit(estimator, lines))
        console.echo_table(*tabulate_parts(estimator))

    console.write_findings(
        {**held, **models.describe_fit(estimator), **list_parameters(estimator)}, json_to, show
    )
