"""Elements of HTML and SVG, as trees: whatever text comes into the page is escaped on its way out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element, tostring

Children: TypeAlias = "Element | str | Iterable[Children] | None"

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # No person should see these.


def tag(name: str, /, *children: Children, **attributes: Any) -> Element:
    """`tag("p", "some ", tag("b", "text"), class_="note")`; attributes that are None or False are left out.

    An underscore in an attribute's name is a hyphen (and one at its end is dropped), a number is rounded.
    """
    element = Element(name)
    for key, value in attributes.items():
        if value is not None and value is not False:
            element.set(key.rstrip("_").replace("_", "-"), _attribute(value))
    append(element, *children)
    return element


def append(element: Element, *children: Children) -> None:
    for child in children:
        if isinstance(child, str):
            _append_text(element, plain_text(child))
        elif isinstance(child, Element):
            element.append(child)
        elif child is not None:
            append(element, *child)


def scrolled(table: Element, name: str, tall: bool = False) -> Element:
    """A table in a region of its own, which scrolls (by the keyboard too) where it is too wide, or `tall`."""
    class_ = "scrolled tall" if tall else "scrolled"
    return tag("div", table, class_=class_, tabindex=0, role="region", aria_label=name)


def plain_text(text: str) -> str:
    """Text that can be written as UTF-8 and shows: no control characters, no half surrogates."""
    return _CONTROL.sub("�", text).encode("utf-8", "replace").decode("utf-8")


def document(root: Element) -> str:
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def percent(share: float) -> str:
    """A share of the width, for an SVG coordinate."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def _attribute(value: Any) -> str:
    if value is True:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return plain_text(str(value))


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text
