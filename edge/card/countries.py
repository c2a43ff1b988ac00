"""Countries in the kernel's rules for wireless networks (wireless-regdb), by their codes of ISO 3166-1.

For any other code the kernel silently uses what is allowed everywhere: channels 12, 13 and most of 5 GHz stay closed.
Such a code is therefore refused when settings are written.
"""

from __future__ import annotations

from typing import Final

KNOWN: Final = frozenset(
    """
    AD AE AF AI AL AM AN AR AS AT AU AW AZ BA BB BD BE BF BG BH BL BM BN BO BR BS BT BW BY BZ CA CF CH CI CL CN CO
    CR CU CX CY CZ DE DK DM DO DZ EC EE EG ES ET FI FM FO FR GB GD GE GF GH GI GL GP GR GT GU GY HK HN HR HT HU ID
    IE IL IM IN IR IS IT JM JO JP KE KH KN KP KR KW KY KZ LB LC LI LK LS LT LU LV MA MC MD ME MF MH MK MN MO MP MQ
    MR MT MU MV MW MX MY NA NG NI NL NO NP NZ OM PA PE PF PG PH PK PL PM PR PT PW PY QA RE RO RS RU RW SA SE SG SI
    SK SM SN SR SV SX SY TC TD TG TH TN TR TT TW TZ UA UG US UY UZ VA VC VE VI VN VU WF WS YE YT ZA ZW
    """.split()  # noqa: SIM905 - a list of strings would be 180 lines
)
"""Codes of Debian's wireless-regdb 2026.05.30. A test compares them with the database that an image holds."""
MEANT: Final = {"UK": "GB", "EN": "GB", "EL": "GR", "JA": "JP", "KO": "KR", "SP": "ES"}
"""Correct codes by common mistakes: short names, codes of languages, and codes of the European Union."""


def country_fault(code: str) -> str:
    """Return why a wireless network cannot use this country; empty when it can."""
    if code in KNOWN:
        return ""
    meant = MEANT.get(code.upper(), code.upper())
    if meant in KNOWN:
        return f'"{code}" is not a country of ISO 3166: did you mean {meant}?'
    return f'"{code}" is not a country with rules for wireless networks; two letters of ISO 3166, for example DE or US'
