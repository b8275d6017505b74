"""Numbers and names as text, for tables, figures and the terminal."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence


def percent(rate: float) -> str:
    """Return a rate (1.0 is 100 %) as text in per cent, with two to three significant digits; "–" for NaN.

    Example:
      >>> from fpsim.display.wording import percent
      >>> [percent(rate) for rate in (0.0, 2e-7, 0.00932, 0.123, 0.9996, 1.0)]
      ['0 %', '<0.001 %', '0.93 %', '12.3 %', '>99.9 %', '100 %']
    """
    value = 100 * rate
    if math.isnan(value):
        return "–"
    if value in (0, 100):
        return f"{value:.0f} %"
    if value >= 99.95:
        return ">99.9 %"
    if value < 0.001:
        return "<0.001 %"
    return f"{value:.1f} %" if value >= 9.95 else f"{value:.2g} %"


def decibels(value: float) -> str:
    """Return `value`, an SQNR (signal-to-quantization-noise ratio) in decibels, as text.

    Example:
      >>> from fpsim.display.wording import decibels
      >>> decibels(31.53), decibels(-0.01), decibels(float("inf")), decibels(float("nan"))
      ('31.5 dB', '0.0 dB', 'no error', 'no data')
    """
    return "no error" if value == math.inf else "no data" if math.isnan(value) else f"{round(value, 1) + 0.0:.1f} dB"


def power_of_two(value: float) -> str:
    """Return the largest power of two not above a positive number, as text such as "2⁻²"; other numbers as decimals.

    Example:
      >>> from fpsim.display.wording import power_of_two
      >>> power_of_two(0.3), power_of_two(0.0)
      ('2⁻²', '0')
    """
    return power(math.frexp(value)[1] - 1) if value > 0 and math.isfinite(value) else f"{value:g}"


def power(exponent: int) -> str:
    """Return 2 to the power `exponent` as text with superscript digits."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital first letter if it begins with "layer " or "the ".

    A sentence that begins with a name, such as a layer's or a chip's own, is returned unchanged.

    Example:
      >>> from fpsim.display.wording import capitalized
      >>> capitalized("the run differs."), capitalized("blocks.0 differs.")
      ('The run differs.', 'blocks.0 differs.')
    """
    return sentence[0].upper() + sentence[1:] if sentence.startswith(("layer ", "the ")) else sentence


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun, in the plural if needed; many: the plural, if it is not the noun with an s.

    Example:
      >>> from fpsim.display.wording import plural
      >>> plural(1, "tensor"), plural(12345, "tensor"), plural(2, "batch", "batches")
      ('1 tensor', '12,345 tensors', '2 batches')
    """
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def are(number: int) -> str:
    """Return the verb of a sentence whose subject is a number of things: "is" for 1, else "are".

    Example:
      >>> from fpsim.display.wording import are
      >>> are(1), are(0)
      ('is', 'are')
    """
    return "is" if number == 1 else "are"


def listed(words: Sequence[str], most: int | None = None, separator: str = ", ") -> str:
    """Return words as a list in a sentence; after the first `most` words (None: all), the others are only counted.

    For words that contain commas, pass the separator "; "; then there is no "and" if all words are listed.

    Example:
      >>> from fpsim.display.wording import listed
      >>> listed(["a", "b", "c"]), listed(["a", "b", "c", "d"], most=2), listed(["a, b", "c"], separator="; ")
      ('a, b and c', 'a, b and 2 more', 'a, b; c')
    """
    words = [*words]
    rest = 0 if most is None else max(len(words) - most, 0)
    shown = words[: len(words) - rest]
    if separator != ", ":
        return separator.join([*shown, *([f"and {rest} more"] if rest else [])])
    if rest:
        shown.append(f"{rest} more")
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def bytes_in_words(count: float) -> str:
    """Return a number of bytes as text with three digits and a decimal unit (1 kB is 1000 bytes).

    Example:
      >>> from fpsim.display.wording import bytes_in_words
      >>> bytes_in_words(512), bytes_in_words(999_700), bytes_in_words(43_100_000), bytes_in_words(2**31)
      ('512 bytes', '1 MB', '43.1 MB', '2.15 GB')
    """
    for size, unit in ((1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= 0.9995 * size:  # 999,700 bytes are 1 MB in three digits
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def printable(text: str) -> str:
    """Return text in which U+FFFD replaces characters that control a terminal, reverse text or are invalid in XML.

    Example:
      >>> from fpsim.display.wording import printable
      >>> printable("w\\x1b[31m")
      'w�[31m'
    """
    kinds = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return "".join("\ufffd" if unicodedata.category(sign) in kinds else sign for sign in text)


def short(name: str, width: int) -> str:
    """Return a name, such as "model.layers.10.mlp", shortened to at most `width` characters and made printable.

    Characters that control a terminal are replaced. From the left, parts between dots shrink to their first letter,
    except numbers and the last part, until the name fits. A name that is still too long is cut in the middle.

    Example:
      >>> from fpsim.display.wording import short
      >>> short("model.layers.10.mlp.down_proj.weight", 25), short("a" * 30 + "b" * 30, 9)
      ('m.l.10.m.down_proj.weight', 'aaaa…bbbb')
    """
    name = printable(name)
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if len(".".join(parts)) <= width:
            break
        if part and not any(sign.isdigit() for sign in part):
            parts[i] = part[0]
    name = ".".join(parts)
    if len(name) <= width:
        return name
    tail = width // 2
    return f"{name[: width - tail - 1]}…{name[len(name) - tail :]}"
