"""Comparing runs of tokens without a Python loop over tokens."""

from __future__ import annotations

_FIRST_STRIDE = 16


def count_common(a: list[int], a_start: int, b: list[int], b_start: int, limit: int) -> int:
    """How many of the next `limit` tokens of two lists are equal. Neither list is shorter than its range.

    Strides double while slices are equal, and the first unequal one is bisected: O(limit) compared in C,
    O(log limit) steps in Python.
    """
    done, stride = 0, _FIRST_STRIDE
    while done < limit:
        size = min(stride, limit - done)
        i, j = a_start + done, b_start + done
        if a[i : i + size] != b[j : j + size]:
            return done + _first_difference(a, i, b, j, size)
        done += size
        stride *= 2
    return done


def _first_difference(a: list[int], i: int, b: list[int], j: int, size: int) -> int:
    low, high = 0, size - 1  # the first difference lies in [low, high]
    while low < high:
        middle = (low + high) // 2
        if a[i + low : i + middle + 1] == b[j + low : j + middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low
