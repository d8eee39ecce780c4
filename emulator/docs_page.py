"""`/openapi.json`, and `/docs`: the same as a page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from html import escape
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from emulator.openapi import describe
from emulator.responses import JSON
from emulator.settings import EmulatorSettings

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
code, pre { font: 13px/1.4 ui-monospace, monospace }
pre { background: #8882; overflow: auto; padding: .7rem }
h2 { border-bottom: 1px solid #8886; margin-top: 2rem }
summary { cursor: pointer; padding: .2rem 0 }
.method { display: inline-block; font-weight: bold; width: 4rem }
:root { color-scheme: light dark }
"""
# The browser keeps the page to its word: nothing is loaded, and nothing runs.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class DocsRoutes:
    """Describes the other routes, once, when first asked: no start of the server waits for it."""

    def __init__(self, routes: Sequence[BaseRoute], settings: EmulatorSettings) -> None:
        self._others = routes
        self._settings = settings

    @cached_property
    def _description(self) -> dict[str, Any]:
        return describe(self._others, self._settings)

    @cached_property
    def _page(self) -> str:
        return page(self._description)

    def routes(self) -> list[Route]:
        """Return the routes to mount."""
        return [
            Route("/openapi.json", self._json, methods=["GET"]),
            Route("/docs", self._html, methods=["GET"]),
        ]

    async def _json(self, request: Request) -> Response:
        return JSON(self._description)

    async def _html(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers={"content-security-policy": _POLICY})


def page(description: dict[str, Any]) -> str:
    """Return the description as HTML: its operations by their tags, then its schemas."""
    tags: dict[str, list[str]] = {}
    for path, methods in description["paths"].items():
        for method, known in methods.items():
            tags.setdefault(known["tags"][0], []).append(_operation(method, path, known))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in tags.items()]
    schemas = description["components"]["schemas"]
    parts.append("<h2>schemas</h2>")
    parts += [
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{_code(schema)}</details>"
        for name, schema in schemas.items()
    ]
    title = escape(description["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1><p>{escape(description['info']['description'])}"
        f' The whole as <a href="/openapi.json">OpenAPI</a>.</p>{"".join(parts)}</html>'
    )


def _operation(method: str, path: str, known: dict[str, Any]) -> str:
    said = "".join(
        f"<li><code>{escape(code)}</code> {escape(answer['description'])} {_links(answer)}</li>"
        for code, answer in known["responses"].items()
    )
    asked = "".join(
        f"<li><code>{escape(each['name'])}</code> in {escape(each['in'])}: "
        f"{escape(each.get('description', ''))} <code>{escape(_text(each['schema']))}</code></li>"
        for each in known["parameters"]
    )
    body = known.get("requestBody")
    if body is not None:
        shown = next(iter(body["content"].values()))["example"]
        asked += f"<li>a body {_links(body)}, such as{_code(shown)}</li>"
    return (
        f'<details><summary><span class="method">{escape(method.upper())}</span>'
        f"<code>{escape(path)}</code> {escape(known['summary'])}</summary>"
        f"<ul>{asked}</ul><ul>{said}</ul></details>"
    )


def _links(content: dict[str, Any]) -> str:
    found = []
    for label, each in content.get("content", {}).items():
        name = each["schema"].get("$ref", "").rpartition("/")[2]
        link = f'<a href="#{escape(name)}">{escape(name)}</a> as ' if name else ""
        found.append(f"{link}<code>{escape(label)}</code>")
    return ", ".join(found)


def _code(schema: dict[str, Any]) -> str:
    return f"<pre>{escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())}</pre>"


def _text(schema: dict[str, Any]) -> str:
    return orjson.dumps(schema).decode()
