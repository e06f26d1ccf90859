"""What estimators of two views share: tables as rows of a view, features, the fit from rows to canonical variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor, nn

from boxloop.data import (
    ArraySource,
    ConcatenatedRows,
    SparseSource,
    as_frame,
    finite_source,
    fit_standardisation,
    flatten_images,
    has_equal_weights,
    holds_numbers,
    is_read_in_place,
    on_device,
    open_source,
    sample_rows,
    select_rows,
    to_array,
    validate_rows,
    wrap_as_tensor,
)
from boxloop.estimators._base import Array, DeviceEstimator, check_no_overflow, to_numpy, warn_of
from boxloop.estimators._input import (
    COMMON,
    Shape,
    find_shape_fault,
    match_columns,
    pick_device,
    pick_dtype,
    refuse_rows,
)
from boxloop.estimators._training import (
    COUNT,
    POSITIVE,
    RATE,
    NetworkShapes,
    TrainingRun,
    check_convergence,
    make_part,
    make_plan,
)
from boxloop.fit import Epochs, Trainer, TrainState, coordinates, current_workers, hold_out
from boxloop.loop import Progress
from boxloop.models import Convolutions, Layers, Part, SavedModule
from boxloop.numeric import generator, seed, spawn
from boxloop.persist import PROGRESS, ModelFile, Saved, SaveMixin, is_of_type
from boxloop.twoview import (
    CONSTRAINTS,
    RIDGES,
    ROWS_PER_FEATURE,
    CanonicalVariables,
    FiniteView,
    FourierView,
    LinearView,
    NetworkView,
    RelevanceFit,
    RelevanceLoss,
    RelevanceModel,
    RelevanceValidation,
    View,
    ViewPair,
    choose_ridge,
    fit_fixed_features,
)
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KERNEL_ROWS = 1000
"""Rows among which the median distance, the length scale of a kernel, is computed."""

RIDGE_FOLDS = 5
"""Folds of the cross-validation that chooses a ridge."""

FEW_ROWS = 5
"""Rows per column of both views below which linear relations look much stronger than they are."""

SMALL_BATCH = 256
"""Rows of a mini-batch where features are few."""

BATCH_ROWS = 30
"""Rows of a mini-batch per feature: with the paper's 10 a network still learns chance correlations of batches."""

REFERENCE_ROWS = 20
"""Training rows per feature from which validation finds canonical variables."""

HELD_OUT_VALUES = 1 << 25
"""Largest number of values of the held-out rows: they are in memory."""


# Tables


@dataclass(frozen=True)
class ViewSchema:
    """What a fit knows of the table of one view: later tables of that view are read alike."""

    word: str  # ``X`` or ``Y``, for messages
    names: tuple[str, ...]  # of the columns
    image: Shape | None = None  # shape of one image, None for plain rows
    values: tuple[Any, ...] | None = None  # of a finite view, in order, as they came; None for numbers
    flat: bool = False  # whether the table had one dimension

    @classmethod
    def read(
        cls, table: Any, word: str, features: Any, device: torch.device, weight: Any = None
    ) -> tuple[ViewSchema, Source]:
        """The schema of a table of a fit, and its rows on a device; ``features`` are the parameter of this view."""
        column = _extract_single_column(table)
        flat = column is not None and _has_one_dimension(table)
        if features == "finite" or (features == "auto" and _has_labels(table, column)):
            if column is None:
                raise ValueError(f"a finite view is one column of values: {word} has more, or is a file")
            _refuse_missing_labels(column, word)
            names = (find_column_name(table) or f"{word.lower()}0",)
            schema = cls(word, names, None, _list_distinct_values(column, word), flat)
            return schema, schema.open(table, device, weight)
        rows, image = flatten_images(table)
        name = find_column_name(table) if flat else None
        source = _open_numeric_table(rows, word, weight, None if name is None else [name])
        return cls(word, source.names, image, None, flat), _refuse_missing_values(source, word, device)

    def open(self, table: Any, device: torch.device, weight: Any = None) -> Source:
        """The rows of another table of this view on a device, checked against the schema."""
        if self.values is not None:
            return on_device(self._open_labels(table, weight), device)
        rows, image = flatten_images(table)
        if image is not None and image != self.image:
            raise ValueError(
                f"images of shape {image} were given as {self.word}, the fit had {self.image or 'rows'}"
            )
        flat = _has_one_dimension(table) and _extract_single_column(table) is not None
        names = list(self.names) if len(self.names) == 1 and flat else None
        source = _open_numeric_table(rows, self.word, weight, names)
        unnamed = tuple(f"x{j}" for j in range(source.n_columns))
        if source.n_columns != len(self.names) or not (
            source.names == self.names or unnamed in (source.names, self.names)
        ):
            raise ValueError(
                f"{self.word} has {source.n_columns} columns ({', '.join(source.names[:9])}), but the fit had "
                f"{len(self.names)} ({', '.join(self.names[:9])}): give these, in this order"
                + ("; one row is a table (1, d)" if flat else "")
            )
        return _refuse_missing_values(source, self.word, device)

    def _open_labels(self, table: Any, weight: Any) -> ArraySource:
        column = _extract_single_column(table)
        if column is None or self.values is None:
            raise ValueError(f"{self.word} was one column of values in the fit; one column is needed")
        _refuse_missing_labels(column, self.word)
        codes = {value: code for code, value in enumerate(self.values)}
        labels = np.asarray(column).tolist()
        unknown = next((label for label in labels if label not in codes), None)
        if unknown is not None:
            known = ", ".join(map(repr, self.values[:9]))
            raise ValueError(
                f"{self.word} holds {unknown!r}, which the fit has not seen: its values are {known}"
            )
        rows = torch.tensor([float(codes[label]) for label in labels], dtype=torch.float64)[:, None]
        source = open_source(rows, weight, list(self.names))
        assert isinstance(source, ArraySource)
        return source

    def reshape(self, rows: Any) -> Any:
        """Columns of this view in the shape of the table of the fit."""
        if self.image is not None:
            return rows.reshape(len(rows), *self.image)
        return rows[:, 0] if self.flat and self.values is None else rows

    @property
    def labels(self) -> list[str]:
        """Names of the columns, or the values of a finite view."""
        return [str(name) for name in (self.names if self.values is None else self.values)]


def _open_numeric_table(table: Any, word: str, weight: Any, names: list[str] | None) -> Source:
    """A table of numbers as a source; one dimension is one column."""
    if isinstance(table, list | tuple):
        table = np.asarray(table)
    if type(table) is np.ndarray and table.ndim == 2 and table.dtype == np.float64 and table.size:
        return finite_source(wrap_as_tensor(table), weight, None if names is None else tuple(names))
    if issparse(table) or isinstance(table, SparseSource):
        raise ValueError(f"{word} is sparse: two views take dense rows")
    if isinstance(table, np.ndarray | Tensor):
        return open_source(table[:, None] if table.ndim == 1 else table, weight, names)
    if isinstance(table, ArraySource) and table.weight is None and weight is not None:
        return open_source(table.rows, weight, list(table.names))
    if is_read_in_place(table):
        return open_source(table, weight, names)
    frame = as_frame(table)
    if frame is None:
        column = _extract_single_column(table)
        return open_source(table if column is None else np.asarray(column)[:, None], weight, names)
    for series in frame.iter_columns():
        if not holds_numbers(series):
            raise ValueError(
                f"column {series.name!r} of {word} is not numeric ({series.dtype}): encode it as numbers, or "
                "give it alone as a finite view"
            )
    return open_source(table, weight, names)


def _refuse_missing_values(source: Source, word: str, device: torch.device) -> Source:
    """The source on a device, refusing missing values: at once where it is in memory, else as it is read."""
    if device.type != "cpu":
        source = on_device(source, device)
    if isinstance(source, ArraySource) and bool(torch.isfinite(source.rows.sum())):
        return source  # a finite sum proves that nothing is missing
    checked = refuse_rows(source, torch.isnan, partial(_describe_missing_value, word))  # can be pickled
    if not isinstance(source, ArraySource):
        return checked
    for _ in checked.chunks():
        pass
    return source


def _describe_missing_value(word: str, name: str, _: float) -> str:
    return f"{word} has a missing value (NaN) in column {name!r}: impute it, or drop the row"


def _has_one_dimension(table: Any) -> bool:
    dimensions = getattr(table, "ndim", None)  # np.ndim asks NumPy's functions of what is no array
    return (np.asarray(table).ndim if dimensions is None else dimensions) == 1


def _extract_single_column(table: Any) -> Any:
    """The values of a table of one column, None for any other table."""
    if isinstance(table, Tensor):
        table = table.detach().cpu().numpy()
    if isinstance(table, list | tuple):
        table = np.asarray(table)
    if isinstance(table, np.ndarray):
        if table.ndim == 1:
            return table
        return table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else None
    if is_read_in_place(table):
        return None
    frame = as_frame(table)
    if frame is not None:
        return frame.to_numpy()[:, 0] if frame.shape[1] == 1 else None
    values = np.asarray(table)
    return values if values.ndim == 1 else None


def find_column_name(table: Any) -> str | None:
    """Name of the one column of a frame or series."""
    frame = as_frame(table)
    name = getattr(table, "name", None) if frame is None else frame.columns[0]
    return None if name is None else str(name)


def _has_text(column: Any) -> bool:
    kind = np.asarray(column).dtype.kind
    return kind in "USb" or (kind == "O" and any(isinstance(value, str | bool) for value in column))


def _has_labels(table: Any, column: Any) -> bool:
    """Whether a table is one column of text, of true and false, or of a categorical type, whose numbers are labels."""
    if column is None or _has_text(column):
        return column is not None
    frame = as_frame(table)
    kind = getattr(table, "dtype", None) if frame is None else frame.schema[frame.columns[0]]
    return str(kind).lower().startswith(("categor", "enum"))


def _list_distinct_values(column: Any, word: str) -> tuple[Any, ...]:
    """The values of a column, in order."""
    try:
        return tuple(np.unique(np.asarray(column, dtype=object if _has_text(column) else None)).tolist())
    except TypeError as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in np.asarray(column).tolist()}))
        raise ValueError(f"{word} mixes labels of several types ({kinds}): make them all text") from error


def _refuse_missing_labels(column: Any, word: str) -> None:
    for row, value in enumerate(np.asarray(column).tolist()):
        try:
            missing = value is None or bool(value != value)
        except TypeError:  # comparisons with pandas' NA give NA, which is neither true nor false
            missing = True
        if missing:
            raise ValueError(f"{word} has a missing value in row {row}: fill it, or drop the row")


# Features


def start_view(
    estimator: BaseEstimator,
    kind: Any,
    n_features: int,
    schema: ViewSchema,
    source: Source,
    stream: Generator,
) -> View:
    """Features of one view before training, of a kind, by the other parameters of an estimator."""
    device, dtype = pick_device(estimator.device), getattr(torch, estimator.dtype or "float32")
    if schema.values is not None:
        return FiniteView(torch.arange(len(schema.values), dtype=torch.float64, device=device))
    known = fit_standardisation(source, hashed=False)
    frame = coordinates(source, "columns" if schema.image is None else "common", known)
    origin, scale = frame.origin.to(device), frame.scale.to(device)
    if kind == "linear":
        return LinearView(origin, scale)
    if kind == "fourier":
        own = spawn(stream, 2)
        length = estimator.length_scale or _compute_median_distance(source, origin, scale, own[0])
        return FourierView.start(origin, scale, estimator.n_fourier, length, own[1])
    if isinstance(kind, nn.Module):
        part = make_part(kind, None, device, dtype, stream)
        return NetworkView(origin, scale, part, _measure_output_width(part, origin, kind), bounded=False)
    shapes = NetworkShapes.from_parameters(source.n_columns, n_features, schema.image, estimator.hidden)
    network: Any = Layers(source.n_columns, shapes.widths, n_features)
    if shapes.convolution_input is not None:
        network = Convolutions(shapes.convolution_input, shapes.widths, n_features)
    part = make_part(None, network, device, dtype, stream)
    return NetworkView(origin, scale, part, n_features)


def _compute_median_distance(source: Source, origin: Tensor, scale: Tensor, stream: Generator) -> float:
    """Median distance of rows in standard units."""
    sample = sample_rows(source, KERNEL_ROWS, stream)
    rows = (sample.rows[sample.weight > 0.0].to(origin) - origin) / scale
    distance = torch.pdist(rows.double())
    return float(distance.median()) if len(distance) and bool(distance.median() > 0.0) else 1.0


def _measure_output_width(part: Part, origin: Tensor, module: nn.Module) -> int:
    """Number of features that a user's module gives; refuses one that does not map rows to features."""
    name, columns = type(module).__name__, len(origin)
    try:
        with torch.no_grad():
            output = part(torch.zeros(2, columns, device=origin.device))
    except RuntimeError as error:
        raise ValueError(
            f"{name} does not take rows of {columns} columns (images flattened): {error}"
        ) from error
    if output.dim() != 2 or output.shape[0] != 2:
        raise ValueError(
            f"a module of features maps rows (n, {columns}) to (n, k); {name} gave {tuple(output.shape)} for 2 rows"
        )
    return int(output.shape[1])


# The fit


@dataclass(frozen=True)
class FittedViews:
    """Canonical variables with the means of columns, the rows behind them, and how the fit went."""

    fit: RelevanceFit
    rows: Source  # of the fit, both views
    ridge: float  # that was used
    concerns: tuple[str, ...]
    batch: int  # rows of a mini-batch; all of them where features are fixed
    held_out: ArraySource | None = None  # rows that neither trained nor chose the epoch
    history: dict[str, list[float]] = field(default_factory=dict)  # a value per epoch
    epochs: int = 1
    converged: bool = True
    interrupted: bool = False


def fit_views(
    estimator: BaseEstimator, pair: ViewPair, both: Source, first: Source | None, most: int
) -> FittedViews:
    """Fit features that have not been trained by the parameters of an estimator.

    ``first`` holds the rows of the first view alone, where a channel draws the second anew at every step.
    """
    learned, validate = bool(pair.trainable()), estimator.ridge == "validation"
    if validate and learned:
        raise ValueError(
            "ridge='validation' is for fixed features: networks are validated as they are trained"
        )
    random = any(isinstance(view, FourierView) for view in (pair.left, pair.right))
    ridge = 0.0 if estimator.ridge is None or validate else float(estimator.ridge)
    if (validate or (random and estimator.ridge is None and not learned)) and both.n_rows >= 2 * RIDGE_FOLDS:
        key = seed(generator(estimator.random_state))
        ridge = choose_ridge(pair, both, most, folds=RIDGE_FOLDS, key=key)
    if not learned:
        dtype = torch.float64 if estimator.dtype is None else pick_dtype(estimator.dtype)
        fit = fit_fixed_features(pair, both, most, ridge, dtype)
        concerns = find_concerns(fit.model, both.n_rows, most, ridge)
        return FittedViews(fit, both, ridge, concerns, both.n_rows)
    return _train_views(estimator, pair, both, first, ridge, most)


def _train_views(
    estimator: BaseEstimator, pair: ViewPair, both: Source, first: Source | None, ridge: float, most: int
) -> FittedViews:
    """Learn features by gradient, with some rows that choose the epoch and others for tests, then solve."""
    streams = spawn(generator(estimator.random_state), 4)
    splits, orders, own = (seed(stream) for stream in streams[:3])
    capacity = max(1, HELD_OUT_VALUES // both.n_columns)
    mask, held_out = hold_out(both, estimator.validation_fraction, splits, capacity)
    train = both if mask is None else select_rows(both, ~mask)
    width = 1 + max(pair.left.n_features, pair.right.n_features)
    least = max(SMALL_BATCH, BATCH_ROWS * width)
    size = estimator.batch_size or -(-train.n_rows // max(1, train.n_rows // least))  # no batch below least
    epochs = Epochs(both if first is None else first, size, orders, mask)
    validation, for_tests = None, None
    if held_out is not None:
        reference = sample_rows(train, max(REFERENCE_ROWS * width, held_out.n_rows), streams[3])
        index = torch.arange(held_out.n_rows, device=held_out.rows.device)
        ridges = RIDGES if estimator.ridge is None else (ridge,)
        validation = RelevanceValidation(
            ArraySource(reference.rows, reference.weight), held_out.take(index[::2]), ridges
        )
        for_tests = held_out.take(index[1::2]) if len(index) > 1 else None
    channel, workers = None if first is None else estimator.channel, current_workers()
    loss = RelevanceLoss(ridge, estimator.constant, not has_equal_weights(both), channel, workers)
    validates = validation is not None
    # The loss branches on pivots, which a graph of the GPU cannot.
    plan = make_plan(estimator, estimator.max_iter * epochs.per_epoch, validates, graphs=False)
    trainer = Trainer(pair, epochs, loss, plan, None, validation, workers)
    describe = partial(describe_progress, "relevance", "relevance")
    outcome = TrainingRun(estimator, trainer, both, describe, own)()
    state = outcome.state
    pair = state.fitted(pair)
    converged = check_convergence(
        estimator, outcome, validates, "the relevance of validation rows still rose"
    )
    if validation is not None:
        ridge = validation.fit_best_ridge(pair)[2]
    model = RelevanceModel.solve(pair, train, most, ridge)
    concerns = (*outcome.events, *find_concerns(model, train.n_rows, most, ridge))
    smallest = min(epochs.sizes)
    if smallest < ROWS_PER_FEATURE * width:
        concerns = (
            f"a batch has {smallest} rows for {width} features with the constant: below {ROWS_PER_FEATURE} rows per "
            "feature the relevances of a batch are spurious; raise batch_size, lower n_features, or use more rows",
            *concerns,
        )
    return FittedViews(
        RelevanceFit.of(model, train),
        train,
        ridge,
        concerns,
        batch=max(epochs.sizes),
        held_out=for_tests,
        history=state.history_by_name(),
        epochs=state.epoch,
        converged=converged,
        interrupted=outcome.interrupted,
    )


def describe_progress(word: str, name: str, progress: Progress[TrainState]) -> str:
    """Text of a progress bar: the epoch, and a reported number in its batches and on held-out rows."""
    state = progress.state
    recent, history = dict(zip(state.names, state.recent.tolist())), state.history_by_name()
    parts = [f"epoch {state.epoch}"]
    if recent:
        parts.append(f"{word} {recent[name]:.4g}")
    if history.get(f"validation_{name}"):
        parts.append(f"held out {history[f'validation_{name}'][-1]:.4g}")
    return ", ".join(parts)


def find_concerns(model: RelevanceModel, rows: int, most: int, ridge: float) -> tuple[str, ...]:
    """What makes canonical variables doubtful, one sentence each."""
    concerns = []
    pair, correlation = model.pair, model.canonical.correlation
    width = pair.left.n_features + pair.right.n_features
    free = sum(view.n_features - isinstance(view, FiniteView) for view in (pair.left, pair.right))
    forced = not ridge and rows <= free  # centred features of both views then span more than there are rows
    remedy = "any rows are then related perfectly; lower the number of features or set ridge"
    for word, view in (("X", pair.left), ("Y", pair.right)):
        if not ridge and rows <= view.n_features:
            concerns.append(f"{rows} rows for {view.n_features} features of {word}: {remedy}")
    if forced and not concerns:
        concerns.append(f"{rows} rows for {width} features of both views: {remedy}")
    if not concerns and not ridge and not pair.trainable() and rows < FEW_ROWS * width:
        concerns.append(
            f"{rows} rows for {width} features of both views: relations look stronger than they are, and inference is "
            "inaccurate; set ridge='validation', and test on held-out rows"
        )
    if len(correlation) < most:
        narrow = "X" if pair.left.n_features <= pair.right.n_features else "Y"
        reason = f"there are no more functions of {narrow} among its features; lower n_features, or take other features"
        if len(correlation) < pair.max_variables or not pair.max_variables:
            learned = any(isinstance(view, NetworkView) for view in (pair.left, pair.right))
            cure = "; larger batches or a lower learning_rate may prevent this in networks" if learned else ""
            reason = f"constant or collinear features add none{cure}"
        concerns.append(
            f"the features have {len(correlation)} canonical variable{'s' * (len(correlation) != 1)}, fewer than "
            f"n_features={most}: {reason}"
        )
    if len(correlation) and float(correlation[0]) > 1.0 - 1e-9 and not forced:
        exact = int((correlation > 1.0 - 1e-9).sum())
        concerns.append(
            f"{exact} canonical variable{'s' * (exact > 1)} of one view {'are' if exact > 1 else 'is'} an exact "
            "function of the other view: do the views share a column?"
        )
    return tuple(concerns)


# Files


PARTS: tuple[type, ...] = (
    RelevanceModel, CanonicalVariables, ViewPair, LinearView, FourierView, FiniteView, NetworkView, Part, Layers,
    Convolutions, SavedModule,
)  # fmt: skip
"""Classes that a model of two views may consist of, in a file."""

FACTS: dict[str, Any] = {
    **PROGRESS,
    "batch_size_": int | None,
    "ridge_": float,
    "history_": dict[str, list[float]],
    "x_schema_": ViewSchema,
    "y_schema_": ViewSchema,
}
"""Fitted attributes of these estimators in a file, beside those that follow from the fit."""


def make_model_file(x_features: str, y_features: str | None = None, **facts: Any) -> ModelFile:
    """The file of an estimator of two views: parameters that may be modules, and types of other fitted attributes."""
    modules = {x_features: "model.pair.left.part"}
    if y_features is not None:
        modules[y_features] = "model.pair.right.part"
    return ModelFile(
        RelevanceFit,
        PARTS,
        CONSTRAINTS,
        {**FACTS, **facts},
        modules,
        attribute="fit_",
        checks=(_has_matching_schemas,),
    )


def _has_matching_schemas(estimator: Any, saved: Saved) -> str | None:
    """A check of a file: the schema of each view fits the view."""
    fit: Any = saved.tree
    pair = fit.model.pair
    return _find_schema_fault(estimator.x_schema_, pair.left, saved.axes["v_left"]) or _find_schema_fault(
        estimator.y_schema_, pair.right, saved.axes["v_right"]
    )


def _find_schema_fault(schema: ViewSchema, view: View, n_values: int) -> str | None:
    labels = list(schema.values or ())
    alike = is_of_type(labels, list[str]) or is_of_type(labels, list[bool | int | float])
    if not alike or any(isinstance(label, float) and not math.isfinite(label) for label in labels):
        return f"the values {labels} of {schema.word} must be text, or finite numbers"
    finite = isinstance(view, FiniteView)
    distinct = None if schema.values is None else len(set(schema.values))
    wanted = (1, n_values) if finite else (view.n_columns, None)
    if (len(schema.names), distinct) != wanted or (finite and len(labels) != n_values):
        return f"the columns {schema.names} or values {schema.values} of {schema.word} do not fit its view"
    return find_shape_fault(schema.image, view.n_columns)


# Estimators


@dataclass(eq=False, repr=False, kw_only=True)
class TwoViewEstimator(
    SaveMixin, DeviceEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Base of the estimators: the parameters of training that they share, rows in, the results of a fit out."""

    hidden: Any = None
    n_fourier: int = 300
    length_scale: float | None = None
    ridge: float | str | None = None
    constant: str = "enforced"
    learning_rate: float = 1e-3
    schedule: str = "constant"
    weight_decay: float = 0.0
    clip: float = 100.0
    batch_size: int | None = None
    max_iter: int = 200
    patience: int | None = 20
    validation_fraction: float = 0.2
    random_state: Any = None
    verbose: int = 0
    checkpoint: Any = None
    device: str = "cpu"
    dtype: str | None = None

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden": ["array-like", None],
        "n_fourier": [COUNT],
        "length_scale": [POSITIVE, None],
        "ridge": [RATE, StrOptions({"validation"}), None],
        "constant": [StrOptions({"enforced", "learned"})],
        "schedule": [StrOptions({"constant", "cosine"})],
        "weight_decay": [RATE],
        "dtype": [*COMMON["dtype"], None],
        "batch_size": [COUNT, None],
        "patience": [COUNT, None],
        "validation_fraction": [Interval(Real, 0.0, 1.0, closed="left")],
        **{name: [POSITIVE] for name in ("learning_rate", "clip")},
        **{name: COMMON[name] for name in ("max_iter", "random_state", "verbose", "checkpoint", "device")},
    }

    def _store_fit(self, fitted: FittedViews, most: int) -> None:
        """Set the attributes of a fit of at most so many variables, and warn of its concerns."""
        self._rows = fitted.rows
        self.held_out_: ArraySource | None = fitted.held_out
        self.history_: dict[str, list[float]] = fitted.history
        self.n_iter_: int = fitted.epochs
        self.batch_size_: int = fitted.batch
        self.converged_: bool = fitted.converged
        self.interrupted_: bool = fitted.interrupted
        self.events_: list[str] = list(fitted.concerns)
        self.ridge_: float = fitted.ridge
        self._store_model(fitted.fit, most)
        warn_of(self.events_)

    def _store_model(self, fit: RelevanceFit, most: int) -> None:
        self.fit_ = fit
        self.model_: RelevanceModel = fit.model
        self.correlation_: Array = to_numpy(self.model_.canonical.correlation)
        self.relevance_: Array = self.correlation_**2
        self.loss_: float = float(most - self.relevance_.sum())

    def _validate_first_view(self, X: Any, *, reset: bool, finite: bool = False) -> Any:
        """X validated by scikit-learn, where it is a table that scikit-learn knows; labels are not changed."""
        rows, image = flatten_images(to_array(X, "X"))
        if is_read_in_place(rows) or isinstance(rows, np.memmap | Tensor):
            match_columns(self, open_source(rows).names, reset)
            return X
        if reset:
            labelled = finite or _has_labels(rows, _extract_single_column(rows))
        else:
            labelled = self.x_schema_.values is not None
        if labelled:
            self.n_features_in_ = 1
            if reset:
                self.__dict__.pop("feature_names_in_", None)
                if np.ndim(rows) == 2 and find_column_name(rows) is not None:
                    self.feature_names_in_: NDArray[np.object_] = np.asarray(
                        [find_column_name(rows)], dtype=object
                    )
            return X
        checked = validate_rows(
            self, rows, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False
        )  # the source refuses infinite values, and names their column
        if image is not None:
            return checked.reshape(len(checked), *image)
        named = getattr(self, "feature_names_in_", None)
        return checked if named is None else open_source(checked, columns=list(named))

    def _open_first_view(self, X: Any, weight: Any = None) -> Source:
        check_is_fitted(self)
        table = self._validate_first_view(X, reset=False)
        return self.x_schema_.open(table, self.model_.canonical.correlation.device, weight)

    def _open_second_view(self, Y: Any) -> Source:
        check_is_fitted(self)
        return self.y_schema_.open(Y, self.model_.canonical.correlation.device)

    def _map_first_view(self, X: Any, function: Callable[[Tensor], Tensor]) -> Array:
        """``function(rows)`` of all rows of a first view; looks at fitted attributes only when it is called."""
        mapped: Array = to_numpy(check_no_overflow(apply_to_rows(self._open_first_view(X), function)))
        return mapped

    @property
    def _n_features_out(self) -> int:
        return len(self.correlation_)

    def plot_trace(self, ax: Axes | None = None) -> Axes:
        """Total relevance after each epoch: of validation rows where there are any, else in the batches."""
        check_is_fitted(self)
        from boxloop.figures import trace

        name = "validation_relevance" if "validation_relevance" in self.history_ else "relevance"
        values = self.history_.get(name, [])
        outcome = (
            "interrupted" if self.interrupted_ else ("converged" if self.converged_ else "not converged")
        )
        up = f"total relevance {'on held-out rows' if name != 'relevance' else 'in a batch'}"
        return trace(values, ax, title=f"{type(self).__name__}: the fit", up=up, label=outcome)


def apply_to_rows(source: Source, function: Any) -> Tensor:
    """``function(rows)`` of all rows of a source, without gradients."""
    with torch.no_grad():
        return source.reduce(lambda rows, weight: ConcatenatedRows.of(function(rows))).concatenate()
