"""The linear layer, its start, and the model that a trained coder becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from boxloop.criticise import mega
from boxloop.data import ArraySource, fit_standardisation
from boxloop.models import Layers, NormalMixturePrior, Part
from boxloop.numeric import generator, normal
from boxloop.twoview import (
    CodeNetwork,
    GeneratorModel,
    LinearView,
    MomentSums,
    RelevanceModel,
    SquaredErrorLoss,
    SquaredErrorValidation,
    ViewPair,
    estimate_residual_variance,
    fit_code_mixture,
    keep_leading_variables,
    prepend_canonical_variables,
    solve_reduced_rank_code,
    standardise_codes,
)


def sum_moments(source: ArraySource) -> MomentSums:
    """Moment sums of rows that hold u(x), then x."""
    return source.reduce(lambda rows, weight: MomentSums.of_features(rows.double(), weight))


def table(n: int, seed: int, noise: float = 0.3) -> Tensor:
    """Two strong directions and one weak one in five columns, off the origin."""
    stream = generator(seed)
    mixing = normal((3, 5), generator(99)) * torch.tensor([[3.0], [2.0], [0.5]])
    return 4.0 + normal((n, 3), stream) @ mixing + noise * normal((n, 5), stream)


def linear_relevance(rows: Tensor, seed: int = 1) -> RelevanceModel:
    """Canonical variables of rows and a noisy copy of them: all five directions."""
    noisy = rows + 0.5 * normal(tuple(rows.shape), generator(seed))
    views = [LinearView(part.mean(0), part.std(0)) for part in (rows, noisy)]
    return RelevanceModel.solve(ViewPair(*views), ArraySource(torch.cat([rows, noisy], 1)), 5)


def best_linear(codes: Tensor, rows: Tensor) -> float:
    """Mean squared error of the best affine map from codes to rows."""
    design = torch.cat([torch.ones(len(codes), 1).double(), codes], 1)
    return float((rows - design @ torch.linalg.lstsq(design, rows).solution).square().mean())


@pytest.fixture(scope="module")
def made() -> tuple[Tensor, RelevanceModel, ArraySource]:
    rows = table(400, 0)
    relevance = linear_relevance(rows)
    source = prepend_canonical_variables(
        ArraySource(rows), relevance, fit_standardisation(ArraySource(rows)), torch.float64
    )
    assert isinstance(source, ArraySource)
    return rows, relevance, source


def coder_of(source: ArraySource, components: int, hidden: tuple[int, ...] = (16,)) -> CodeNetwork:
    network = Layers(components, hidden, 5)
    part = Part(network, network.draw_parameters(generator(3)))
    return CodeNetwork(solve_reduced_rank_code(sum_moments(source), 5, components) @ _bent(components), part)


def _bent(k: int) -> Tensor:
    """A layer that is neither orthogonal nor of unit size, as training leaves it."""
    return torch.eye(k).double() + 0.4 * normal((k, k), generator(8))


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_linear_layer_starts_at_principal_components_where_variables_span_the_columns(
    made: tuple[Tensor, RelevanceModel, ArraySource], k: int
) -> None:
    _, _, source = made
    u, x = source.rows[:, :5], source.rows[:, 5:]
    codes = u @ solve_reduced_rank_code(sum_moments(source), 5, k)
    values = torch.linalg.eigvalsh(torch.cov(x.mT, correction=0))
    assert best_linear(codes, x) == pytest.approx(float(values[: 5 - k].sum() / 5), rel=1e-8, abs=1e-12)
    sizes = (values.flip(0)[:k] / values[-1]).clamp(min=1e-4)
    found = torch.cov(codes.mT, correction=0).reshape(k, k)
    torch.testing.assert_close(found, torch.diag(sizes), rtol=1e-8, atol=1e-10)


def test_codes_beyond_what_the_columns_hold_start_small() -> None:
    rows = table(200, 6)[:, :2]
    u = torch.cat([rows, rows.square(), (rows[:, :1] * rows[:, 1:])], 1)
    code = solve_reduced_rank_code(sum_moments(ArraySource(torch.cat([u, rows], 1))), 5, 4)
    deviation = torch.cov((u @ code).mT, correction=0).diagonal().sqrt()
    torch.testing.assert_close(deviation[2:], torch.full((2,), 0.01).double(), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(deviation[0], torch.ones(()).double(), rtol=1e-6, atol=0.0)


def test_linear_layer_is_the_best_of_its_rank_on_other_variables() -> None:
    rows = table(300, 5)
    u = torch.cat([rows[:, :2], rows[:, :1] ** 2], 1)
    moments = sum_moments(ArraySource(torch.cat([u, rows], 1)))
    best = best_linear(u @ solve_reduced_rank_code(moments, 3, 1), rows)
    around = [best_linear(u @ normal((3, 1), generator(seed)), rows) for seed in range(200)]
    assert best < min(around)
    assert best_linear(u @ solve_reduced_rank_code(moments, 3, 3), rows) == pytest.approx(
        best_linear(u, rows), rel=1e-8
    )


def test_more_components_than_variables_are_refused(
    made: tuple[Tensor, RelevanceModel, ArraySource],
) -> None:
    with pytest.raises(ValueError, match="n_components=6 is more than the 5 relevant variables"):
        solve_reduced_rank_code(sum_moments(made[2]), 5, 6)


def test_error_weighs_rows_as_repetition_does(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    _, _, source = made
    coder, rows = coder_of(source, 2), source.rows[:6]
    weight = torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 1.0]).double()
    repeated = rows.repeat_interleave(weight.long(), 0)
    unit = float(weight.mean())
    ours = SquaredErrorLoss(5, unit)(coder, rows, weight, generator(0))[0]
    plain = SquaredErrorLoss(5)(coder, repeated, torch.ones(8).double(), generator(0))[0]
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=0.0)
    held = SquaredErrorValidation(ArraySource(rows, weight), 5)(coder, generator(0))[0]
    torch.testing.assert_close(held, plain, rtol=1e-12, atol=0.0)
    expected = (coder(repeated[:, :5]) - repeated[:, 5:]).square().mean()
    torch.testing.assert_close(plain, expected, rtol=1e-12, atol=0.0)


def settle(
    made: tuple[Tensor, RelevanceModel, ArraySource], k: int = 2
) -> tuple[CodeNetwork, GeneratorModel]:
    rows, relevance, source = made
    coder = coder_of(source, k)
    residual = estimate_residual_variance(coder, source, 5, "diagonal", 1e-4)
    frame = fit_standardisation(ArraySource(rows))
    return coder, standardise_codes(coder, relevance, sum_moments(source), frame, residual)


def test_settled_model_decodes_as_the_coder_does_and_has_codes_in_standard_form(
    made: tuple[Tensor, RelevanceModel, ArraySource],
) -> None:
    rows, _, source = made
    coder, model = settle(made)
    codes = model.encode(rows)
    torch.testing.assert_close(codes.mean(0), torch.zeros(2).double(), atol=1e-10, rtol=0.0)
    torch.testing.assert_close(torch.cov(codes.mT, correction=0), torch.eye(2).double(), atol=1e-10, rtol=0.0)
    frame = fit_standardisation(ArraySource(rows))
    expected = frame.origin + frame.scale * coder(source.rows[:, :5])
    torch.testing.assert_close(model.emission(codes).mean, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.reconstruct(rows), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.decode(codes), expected, rtol=1e-9, atol=1e-9)


def test_first_code_explains_most_of_the_rows(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    _, model = settle(made, 3)
    standard = made[2].rows[:, 5:]
    shares = (model.encode(made[0]).mT @ standard / len(standard)).square().sum(1)
    assert torch.equal(shares, shares.sort(descending=True).values)


def test_noise_is_the_mean_square_left_over(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    rows, _, source = made
    coder, model = settle(made)
    apart = (rows - model.reconstruct(rows)).square().mean(0)
    variance = model.emission(model.encode(rows[:1])).covariance().diagonal()[0]
    torch.testing.assert_close(variance, apart, rtol=1e-9, atol=0.0)
    one = estimate_residual_variance(coder, source, 5, "spherical", 1e-4)
    torch.testing.assert_close(one[0], model.noise.mean(), rtol=1e-12, atol=0.0)
    assert float(estimate_residual_variance(coder, source, 5, "diagonal", 7.0).min()) == 7.0


def test_samples_follow_the_distribution_that_the_model_states(
    made: tuple[Tensor, RelevanceModel, ArraySource],
) -> None:
    _, model = settle(made)
    model = replace(model, decoder=_affine(model))
    rows, codes = model.sample(20_000, generator(4))
    mean = model.emission(codes).mean
    apart = (rows - mean) / (model.scale * model.noise.sqrt())
    # 5 variances and 2 codes, each z-score beyond 4.5 with chance 7e-6
    variance_error = (2.0 / 20_000) ** 0.5
    assert float((apart.var(0) - 1.0).abs().max()) < 4.5 * variance_error
    assert float((codes.var(0) - 1.0).abs().max()) < 4.5 * variance_error
    few = rows[:1500]  # the moments of each need a pass over the model's nodes
    found = mega(model, few, random_state=0)
    assert found.p_value > 1e-4
    wrong = replace(model, noise=2.0 * model.noise)
    assert mega(wrong, few, random_state=0).p_value < 0.01


def _affine(model: GeneratorModel) -> Part:
    network = Layers(2, (), 5)
    return Part(network, network.draw_parameters(generator(6)))


def test_distribution_of_codes_can_be_a_mixture(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    _, model = settle(made)
    stream = generator(2)
    centres = torch.tensor([[-2.0, 0.0], [2.0, 1.0]]).double()
    which = torch.rand(3000, generator=stream) < 0.3
    codes = torch.where(which[:, None], centres[0], centres[1]) + 0.2 * normal((3000, 2), stream)
    mixed = fit_code_mixture(model, codes, torch.ones(3000).double(), 2, generator(0))
    assert isinstance(mixed.latent, NormalMixturePrior)
    share, order = mixed.latent.log_weight.exp().sort()
    error = (0.3 * 0.7 / 3000) ** 0.5
    assert abs(float(share[0]) - 0.3) < 4.5 * error
    far = (mixed.latent.mean[order] - centres).abs().max()
    assert float(far) < 4.5 * 0.2 / 900**0.5
    assert mixed.prior().draw(3, generator(0)).shape == (1, 3, 2)


def test_fewer_variables_are_the_first_ones(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    rows, relevance, _ = made
    few = keep_leading_variables(relevance, 2)
    torch.testing.assert_close(few.left(rows), relevance.left(rows)[:, :2])
    assert keep_leading_variables(relevance, 9) is relevance
    assert keep_leading_variables(relevance, None) is relevance


def test_collapsed_code_still_makes_a_model(made: tuple[Tensor, RelevanceModel, ArraySource]) -> None:
    rows, relevance, source = made
    coder = coder_of(source, 2)
    flat = replace(coder, code=coder.code[:, :1].repeat(1, 2))
    model = standardise_codes(
        flat, relevance, sum_moments(source), fit_standardisation(ArraySource(rows)), torch.ones(5).double()
    )
    assert model.is_finite()
    torch.testing.assert_close(model.reconstruct(rows), _decoded(flat, rows, source), rtol=1e-5, atol=1e-5)


def _decoded(coder: CodeNetwork, rows: Tensor, source: ArraySource) -> Tensor:
    frame = fit_standardisation(ArraySource(rows))
    return frame.origin + frame.scale * coder(source.rows[:, :5])


def test_codes_are_in_standard_form_on_rows_whose_variables_have_a_mean() -> None:
    relevance, rows = linear_relevance(table(400, 0)), 3.0 + table(300, 7)
    frame = fit_standardisation(ArraySource(rows))
    source = prepend_canonical_variables(ArraySource(rows), relevance, frame, torch.float64)
    assert isinstance(source, ArraySource)
    coder = coder_of(source, 2)
    model = standardise_codes(coder, relevance, sum_moments(source), frame, torch.ones(5).double())
    codes = model.encode(rows)
    torch.testing.assert_close(codes.mean(0), torch.zeros(2).double(), atol=1e-9, rtol=0.0)
    torch.testing.assert_close(torch.cov(codes.mT, correction=0), torch.eye(2).double(), atol=1e-9, rtol=0.0)
    torch.testing.assert_close(model.reconstruct(rows), _decoded(coder, rows, source), rtol=1e-9, atol=1e-9)
