"""Encodings of numbers and ids of texts, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.order import constants
from trainer.settings import CategoryFeature, NumberFeature
from trainer.transform import category_ids, encode_numbers, encoded_size


def number(*edges: float) -> NumberFeature:
    return NumberFeature("x", "float", tuple(edges), mean=0.0, scale=1.0)


def encode(numbers: list[NumberFeature], values: list, present: list) -> np.ndarray:
    return encode_numbers(
        numbers, tf.constant(values, tf.float64), tf.constant(present, tf.bool)
    ).numpy()


def test_a_value_fills_the_bins_below_it_and_a_share_of_its_own() -> None:
    found = encode([number(0, 10, 30, 40)], [[0], [5], [10], [15], [40]], [[True]] * 5)
    right = [[0, 0, 0, 0], [0.5, 0, 0, 0], [1, 0, 0, 0], [1, 0.25, 0, 0], [1, 1, 1, 0]]
    np.testing.assert_allclose(found[:, 0], right, atol=1e-7)


def test_values_outside_the_edges_stay_at_the_ends() -> None:
    values = [[-3e5], [3e5], [np.inf], [-np.inf], [1.7e308]]
    found = encode([number(0, 1, 2)], values, [[True]] * 5)
    np.testing.assert_array_equal(found[:, 0, :2].sum(axis=1), [0, 2, 2, 0, 2])


def test_a_missing_value_has_an_entry_of_its_own() -> None:
    found = encode([number(0, 1, 2)], [[0], [1.5], [np.nan]], [[False], [True], [True]])
    np.testing.assert_array_equal(found[:, 0], [[0, 0, 1], [1, 0.5, 0], [0, 0, 1]])


def test_what_stands_in_a_missing_place_changes_nothing() -> None:
    found = encode([number(0, 1)], [[0.7], [np.nan], [np.inf]], [[False]] * 3)
    np.testing.assert_array_equal(found[:, 0], [[0, 1]] * 3)


def test_features_with_fewer_bins_are_padded_with_zeros() -> None:
    numbers = [number(0, 1), number(0, 1, 2, 3)]
    assert encoded_size(numbers) == 4
    found = encode(numbers, [[9, 9]], [[True, True]])
    np.testing.assert_array_equal(found[0], [[1, 0, 0, 0], [1, 1, 1, 0]])


def test_large_values_with_close_edges_keep_their_digits() -> None:
    # In float32 the two edges and the value would be the same number.
    found = encode([number(1.7e9, 1.7e9 + 1)], [[1.7e9 + 0.25]], [[True]])
    np.testing.assert_allclose(found[0, 0], [0.25, 0], atol=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    edges=st.lists(st.integers(-1000, 1000), min_size=2, max_size=9, unique=True),
    values=st.lists(st.floats(-2000, 2000), min_size=1, max_size=9),
)
def test_the_encoding_is_that_of_the_paper_between_the_edges(edges, values) -> None:
    edges = sorted(edges)
    values = np.clip(values, edges[0], edges[-1])
    found = encode([number(*edges)], values[:, None], np.ones((len(values), 1)))[:, 0, :-1]
    for value, row in zip(values, found, strict=True):
        for bin_, share in enumerate(row):
            low, high = edges[bin_], edges[bin_ + 1]
            right = 0.0 if value < low else 1.0 if value >= high else (value - low) / (high - low)
            # 1e-6: the result is a float32 of 0 to 1.
            assert abs(share - right) < 1e-6


def test_the_encoding_keeps_no_constant_of_the_batchs_size() -> None:
    # The graph optimizer folds zeros of a known shape into a tensor that stays in memory.
    rows = 1000
    graph = (
        tf
        .function(lambda values, present: encode_numbers([number(0, 1)], values, present))
        .get_concrete_function(
            tf.TensorSpec([rows, 1], tf.float64), tf.TensorSpec([rows, 1], tf.bool)
        )
        .graph
    )
    kept = constants(graph.get_operations())
    assert kept
    assert all(one.outputs[0].shape.num_elements() < rows for one in kept)


def test_ids_are_missing_0_unknown_1_and_known_from_2() -> None:
    feature = CategoryFeature("carrier", ("UA", "größe, (cm)", "日本", ""))
    texts = tf.constant(["UA", "größe, (cm)", "日本", "", "ua", "AA"])
    found = category_ids(feature, texts)
    assert found.dtype == tf.int32
    np.testing.assert_array_equal(found, [2, 3, 4, 5, 1, 1])
    present = tf.constant([True, False, True, False, True, False])
    np.testing.assert_array_equal(category_ids(feature, texts, present=present), [2, 0, 4, 0, 1, 0])


def test_an_empty_vocabulary_knows_no_text() -> None:
    found = category_ids(CategoryFeature("tail", ()), tf.constant(["N1", ""]))
    np.testing.assert_array_equal(found, [1, 1])
