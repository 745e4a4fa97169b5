"""Unicode properties that `\\p{…}` may name: general categories, and `Any`, `ASCII`, `Assigned`."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from forktree.backend.grammar.codepoints import ANY, MAX_CODE, CodeSet, complement, normalised

_LONG_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_CATEGORIES = frozenset(name for name in _LONG_NAMES.values())


def property_set(name: str) -> CodeSet | None:
    """The members of a property, or None where the name is not known."""
    if name == "Any":
        return ANY
    if name == "ASCII":
        return ((0, 0x80),)
    if name == "Assigned":
        return complement(_category_set("Cn"))
    key, _, value = name.rpartition("=")
    if key not in ("", "General_Category", "gc"):
        return None
    category = _LONG_NAMES.get(value, value)
    return _category_set(category) if category in _CATEGORIES else None


@lru_cache(maxsize=32)
def _category_set(category: str) -> CodeSet:
    wanted = ("Lu", "Ll", "Lt") if category == "LC" else (category,)
    ranges = []
    start = None
    for code in range(MAX_CODE):
        inside = unicodedata.category(chr(code)).startswith(wanted)
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            ranges.append((start, code))
            start = None
    if start is not None:
        ranges.append((start, MAX_CODE))
    return normalised(ranges)
