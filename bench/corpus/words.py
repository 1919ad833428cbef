"""The words of a text that say what it is about, to tell how much two texts share. Standard library only."""

from __future__ import annotations

import re
import unicodedata

STOP = set(
    """
a about after again all also am an and any anybody are as at back be because been before being but by can could did do
does doing done down for from get gets go goes going got had has have he her hers him his how i if in into is it its
just ll many me more much my no not now of off on one only or our out over own re s shall she should so some t than that the
their them then there these they this those to too up us ve very want was we were what when where which while who why
will with would yes you your
der die das den dem des ein eine und oder ist sind hat wie was wo wann wer ich du er sie es wir ihr im in am an zu auf
el la los las un una y o es son que de en por para con se su al del
""".split()
)
"""Function words of English, German and Spanish."""


def stem(word: str) -> str:
    for end in ("ings", "ing", "ers", "ies", "ed", "er", "es", "s", "e", "y"):
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[: -len(end)]
    return word


def content_words(text: str) -> set[str]:
    flat = unicodedata.normalize("NFKD", text.lower())
    flat = "".join(c for c in flat if not unicodedata.combining(c))
    return {stem(word) for word in re.findall(r"\d+(?:[.:]\d+)+|\w+", flat) if word not in STOP}
