"""Clients in two dimensions: against NumPy's singular values, and points whose distances a plane keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from clusterfl.pipeline.jobs import Plan
from clusterfl.report import plane


def test_principal_components_are_those_of_the_singular_values() -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 5)) * [5, 3, 1, 1, 1]
    points, shares = plane.principal(vectors)
    u, s, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(points), np.abs(u[:, :2] * s[:2]))
    np.testing.assert_allclose(shares, (s**2 / (s**2).sum())[:2])


@pytest.mark.parametrize("count", [1, 3])
def test_equal_vectors_are_one_point(count: int) -> None:
    points, shares = plane.principal(np.full((count, 4), 0.1))
    assert not points.any()
    assert not shares.any()


@given(st.integers(3, 9), st.integers(0, 2**16))
def test_scaling_keeps_the_distances_of_a_plane(count: int, seed: int) -> None:
    distance = cdist(*[np.random.default_rng(seed).normal(size=(count, 2))] * 2)
    points, agreement = plane.scaled(distance)
    np.testing.assert_allclose(cdist(points, points), distance, atol=1e-7)
    assert agreement == pytest.approx(1)
    np.testing.assert_allclose(points.mean(axis=0), 0, atol=1e-9)


def test_scaling_by_hand() -> None:
    # Three points on a line at 0, 1 and 3: centred at 4/3, and the largest coordinate is positive.
    points, agreement = plane.scaled(np.array([[0.0, 1, 3], [1, 0, 2], [3, 2, 0]]))
    np.testing.assert_allclose(points[:, 0], [-4 / 3, -1 / 3, 5 / 3])
    np.testing.assert_allclose(points[:, 1], 0, atol=1e-7)
    assert agreement == pytest.approx(1)


def test_scaling_tells_what_a_plane_loses() -> None:
    # Corners of a tetrahedron are all equally far: a plane can't say so, and no correlation is defined.
    assert np.isnan(plane.scaled(1 - np.eye(4))[1])
    cube = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1).T.astype(float)
    assert 0.5 < plane.scaled(cdist(cube, cube))[1] < 0.99


@pytest.mark.parametrize("count", [1, 2])
def test_few_clients_have_a_place(count: int) -> None:
    points, agreement = plane.scaled(1 - np.eye(count))
    np.testing.assert_allclose(cdist(points, points), 1 - np.eye(count), atol=1e-12)
    assert np.isnan(agreement)


def test_report_reads_the_models_of_methods_that_choose_among_several(study: dict[str, Any]) -> None:
    study["methods"]["clove"] = {"method": "clove", "clusters": 2}
    inputs = Plan.from_settings(study).job("report").inputs
    models = [name for name in inputs if name.endswith(".models")]
    assert models == [f"digits/seed0/methods/{m}.models" for m in ("ifca", "clove")]
