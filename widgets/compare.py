"""Compare: two runs of the same requests under one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets as t

from . import _still as still
from ._assets import bundle, check_lang, styles, translate
from ._payload import pack, plain, trace_of
from .player import describe, figures, write_page


class Compare(anywidget.AnyWidget):
    """Two players, one clock; a request has the same colour in both, and the lead of one grows before your eyes.

    a, b: runs or traces. names: of the two, by default their policies. clock: "time" (the clock of the runs: steps
    or seconds) or "steps" (each engine's own steps, whatever they took). title: above both.
    """

    _esm = bundle("compare.js")
    _css = styles()
    _trace_a = t.Bytes(b"").tag(sync=True)
    _trace_b = t.Bytes(b"").tag(sync=True)
    _options = t.Dict().tag(sync=True)

    def __init__(
        self,
        a: Any,
        b: Any,
        *,
        names: tuple[str, str] | None = None,
        lang: str = "zh",
        clock: str = "time",
        title: str = "",
    ) -> None:
        self.traces = (trace_of(a), trace_of(b))
        self.lang = check_lang(lang)
        if clock not in ("time", "steps"):
            raise ValueError(f'clock={clock!r}: the runs go by "time" (the clock they were made with) or by "steps".')
        units = {tr.meta.get("unit", "step") for tr in self.traces}
        if len(units) > 1:
            raise ValueError(
                "one run counts seconds and the other steps: they have no clock in common. Make both alike."
            )
        policies = tuple(str(tr.meta.get("policy")) for tr in self.traces)
        if names and (isinstance(names, str) or len(names) != 2):
            raise ValueError(f'names={names!r} should be two, one for each run, as ("before", "after").')
        self.names = tuple(str(name) for name in names) if names else policies
        options = {"lang": lang, "names": list(self.names), "clock": clock, "title": str(title)}
        super().__init__(_trace_a=pack(plain(self.traces[0])), _trace_b=pack(plain(self.traces[1])), _options=options)

    def __repr__(self) -> str:
        return f"Compare(a=({describe(self.traces[0])}), b=({describe(self.traces[1])}))"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        html, span = "", max(map(still.work, self.traces))  # one scale: the shorter run must look shorter
        for n, (trace, name) in enumerate(zip(self.traces, self.names)):
            html += still.heading(name, figures(trace, self.lang))
            html += still.run_picture(trace, self.lang, describe(trace), span, key=n == 0)
        return still.bundle(repr(self), html, self.model_id)

    def to_html(self, path: str | Path) -> Path:
        """Write a page that plays anywhere: no kernel, no network, one file. Returns its path."""
        title = self._options["title"] or translate(self.lang, "compare.title")
        return write_page(
            path, title, self.lang, "compare.js", "mountCompare", [plain(x) for x in self.traces], self._options
        )
