"""The formats that drafts define, as patterns of whole values.

    date, time, date-time, duration     RFC 3339 (section 5.6 and appendix A), with the days that a month has
    email                               RFC 5321 mailbox
    hostname                            RFC 1034 and 1123, in drafts 4 and 6
    ipv4, ipv6                          RFC 2673 dotted quad, RFC 4291
    uri, uri-reference, iri, …          RFC 3986, RFC 3987
    uri-template                        RFC 6570
    uuid                                RFC 4122
    json-pointer, relative-json-pointer RFC 6901 and its draft

The others are refused. `regex` is no regular language. `idn-hostname`, `idn-email` and, from draft 7 on, `hostname`
ask for the validity of internationalised labels (RFC 5890 to 5892): their Punycode decodes to permitted characters.
"""

from __future__ import annotations

from functools import lru_cache

from forktree.backend.grammar.regex_syntax import parse_python
from forktree.backend.grammar.regex_tree import Syntax
from forktree.backend.grammar.schema_document import Draft

UNDECIDED_FORMATS = {
    "regex": "brackets that balance and groups that exist",
    "idn-hostname": "the validity of internationalised labels",
    "idn-email": "the validity of internationalised labels",
}
_UNDECIDED_SINCE_7 = {"hostname": "the validity of internationalised labels (xn--…)"}

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_FRACTION = r"(?:\.[0-9]+)?"
_TIME = f"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{_FRACTION}{_OFFSET}|{{leap}})"
_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE})"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LS32}|::(?:{_H16}:){{5}}{_LS32}|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    f"|(?:(?:{_H16}:)?{_H16})?::(?:{_H16}:){{3}}{_LS32}|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

_LABEL = "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_ADDRESS = rf"\[(?:{_IPV4}|IPv6:{_IPV6})\]"
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOSTNAME}|{_ADDRESS})"

_UCS = (
    r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\U00010000-\U0001fffd\U00020000-\U0002fffd\U00030000-\U0003fffd"
    r"\U00040000-\U0004fffd\U00050000-\U0005fffd\U00060000-\U0006fffd\U00070000-\U0007fffd\U00080000-\U0008fffd"
    r"\U00090000-\U0009fffd\U000a0000-\U000afffd\U000b0000-\U000bfffd\U000c0000-\U000cfffd\U000d0000-\U000dfffd"
    r"\U000e1000-\U000efffd"
)
_PRIVATE = r"\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"


def _reference_patterns(ucs: str, private: str) -> tuple[str, str]:
    """URI and URI-reference of RFC 3986; with further characters, IRI and IRI-reference of RFC 3987."""
    unreserved = rf"A-Za-z0-9\-._~{ucs}"
    sub = r"!$&'()*+,;="
    escape = "%[0-9A-Fa-f]{2}"
    pchar = f"(?:[{unreserved}{sub}:@]|{escape})"
    segment = f"{pchar}*"
    no_colon = f"(?:[{unreserved}{sub}@]|{escape})+"
    ip_literal = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~{sub}:]+)\]"
    userinfo = f"(?:[{unreserved}{sub}:]|{escape})*"
    authority = f"(?:{userinfo}@)?(?:{ip_literal}|(?:[{unreserved}{sub}]|{escape})*)(?::[0-9]*)?"
    after_authority = f"//{authority}(?:/{segment})*"
    absolute = f"/(?:{pchar}+(?:/{segment})*)?"
    rootless = f"{pchar}+(?:/{segment})*"
    query = rf"(?:\?(?:{pchar}|[/?{private}])*)?"
    fragment = f"(?:#(?:{pchar}|[/?])*)?"
    scheme = r"[A-Za-z][A-Za-z0-9+\-.]*"
    whole = f"{scheme}:(?:{after_authority}|{absolute}|{rootless})?{query}{fragment}"
    relative = f"(?:{after_authority}|{absolute}|{no_colon}(?:/{segment})*)?{query}{fragment}"
    return whole, f"(?:{whole}|{relative})"


_URI, _URI_REFERENCE = _reference_patterns("", "")
_IRI, _IRI_REFERENCE = _reference_patterns(_UCS, _PRIVATE)
_VARNAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
_VARSPEC = rf"{_VARNAME}(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}}"
    rf"|\{{[+#./;?&=,!@|]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"
)
_JSON_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_PATTERNS = {
    "date": _DATE,
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _TEMPLATE,
    "uuid": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": f"(?s:{_JSON_POINTER})",
    "relative-json-pointer": f"(?s:(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER}))",
}
KNOWN_FORMATS = frozenset([*_PATTERNS, *UNDECIDED_FORMATS, "time", "date-time"])
MAX_HOSTNAME = 253


def undecided(name: str, draft: Draft) -> str | None:
    """What a format of a draft asks that no automaton decides; None where it is exact."""
    reason = UNDECIDED_FORMATS.get(name)
    return _UNDECIDED_SINCE_7.get(name) if reason is None and draft >= Draft.D7 else reason


@lru_cache(maxsize=32)
def format_syntax(name: str) -> Syntax:
    """The pattern of a format's whole value."""
    if name in ("time", "date-time"):
        time = _TIME.replace("{leap}", _leap_seconds())
        return parse_python(f"{_DATE}[Tt]{time}" if name == "date-time" else time)
    return parse_python(_PATTERNS[name])


def _leap_seconds() -> str:
    """23:59:60 in universal time, written at any offset of whole quarters of an hour (no other is in use)."""
    branches = [f"23:59:60{_FRACTION}(?:[Zz]|-00:00)"]
    for minutes in range(-1425, 1440, 15):
        local = (23 * 60 + 59 + minutes) % 1440
        sign = "[+]" if minutes >= 0 else "-"
        offset = f"{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
        branches.append(f"{local // 60:02}:{local % 60:02}:60{_FRACTION}{sign}{offset}")
    return "|".join(branches)
