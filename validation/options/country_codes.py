"""Country codes of telephone numbers, and the lengths of the numbers after them."""

from __future__ import annotations

# Minimum and maximum number of digits after the country code, for codes with known narrow limits.
# The codes are from ITU-T E.164 (list of assigned country codes); none is a prefix of another.
_LENGTHS = {
    "1": (10, 10),
    "7": (10, 10),
    "20": (8, 10),
    "27": (9, 9),
    "30": (10, 10),
    "31": (9, 9),
    "32": (8, 9),
    "33": (9, 9),
    "34": (9, 9),
    "36": (8, 9),
    "39": (8, 11),
    "40": (9, 9),
    "41": (9, 9),
    "43": (7, 13),
    "44": (9, 10),
    "45": (8, 8),
    "46": (7, 10),
    "47": (8, 8),
    "48": (9, 9),
    "49": (7, 12),
    "51": (8, 9),
    "52": (10, 11),
    "54": (10, 11),
    "55": (10, 11),
    "56": (9, 9),
    "57": (8, 10),
    "58": (10, 10),
    "60": (8, 10),
    "61": (9, 9),
    "62": (8, 12),
    "63": (8, 10),
    "64": (8, 10),
    "65": (8, 8),
    "66": (8, 9),
    "81": (9, 10),
    "82": (8, 10),
    "84": (9, 10),
    "86": (10, 11),
    "90": (10, 10),
    "91": (10, 10),
    "92": (9, 10),
    "98": (10, 10),
    "212": (9, 9),
    "213": (8, 9),
    "216": (8, 8),
    "233": (9, 9),
    "234": (8, 10),
    "254": (9, 9),
    "351": (9, 9),
    "353": (7, 9),
    "354": (7, 9),
    "358": (6, 11),
    "370": (8, 8),
    "371": (8, 8),
    "372": (7, 8),
    "380": (9, 9),
    "385": (8, 9),
    "420": (9, 9),
    "421": (9, 9),
    "852": (8, 8),
    "853": (8, 8),
    "880": (8, 10),
    "886": (8, 9),
    "966": (8, 9),
    "971": (8, 9),
    "972": (8, 9),
    "974": (8, 8),
}
_OTHER_CODES = frozenset(
    "53 93 94 95 211 218 220 221 222 223 224 225 226 227 228 229 230 231 232 235 236 237 238 239 "
    "240 241 242 243 244 245 246 247 248 249 250 251 252 253 255 256 257 258 260 261 262 263 264 "
    "265 266 267 268 269 290 291 297 298 299 350 352 355 356 357 359 373 374 375 376 377 378 379 "
    "381 382 383 386 387 389 423 500 501 502 503 504 505 506 507 508 509 590 591 592 593 594 595 "
    "596 597 598 599 670 672 673 674 675 676 677 678 679 680 681 682 683 685 686 687 688 689 690 "
    "691 692 800 808 850 855 856 870 878 881 882 883 888 960 961 962 963 964 965 967 968 970 973 "
    "975 976 977 979 992 993 994 995 996 998".split()
)
_OTHER_LENGTHS = (6, 12)
MAX_DIGITS = 15


def is_international_number(digits: str) -> bool:
    """Return whether digits, without a plus or zeros before them, are a number of any country."""
    if not 8 <= len(digits) <= MAX_DIGITS:
        return False
    for size in (1, 2, 3):
        code = digits[:size]
        lengths = _LENGTHS.get(code) or (_OTHER_LENGTHS if code in _OTHER_CODES else None)
        if lengths:
            rest = digits[size:]
            # The trunk prefix 0 is often kept before the area code.
            if not lengths[0] <= len(rest) - (rest[0] == "0") <= lengths[1] and not (
                lengths[0] <= len(rest) <= lengths[1]
            ):
                return False
            # In North America neither area nor exchange begins with 0 or 1 (NANP).
            return code != "1" or (rest[0] > "1" and rest[3] > "1")
    return False
