// A small line chart with a cursor: areas under lines, an axis at the left, a value at the cursor.

import { FONT, h, readTheme, setText, sizeCanvas } from "./base.js";
import { stripes } from "./palette.js";

const LEFT = 38;
const BOTTOM = 16;
const TOP = 6;

/** series: [{values, colour, style: "area" | "line" | "hatch", stack}]; values are arrays by step. */
export class Chart {
  constructor({ title, series, format, top, x, reading, legend, onSeek }) {
    this.series = series;
    this.format = format;
    this.top = top;
    this.x = x ?? null; // () => array of x values; by default the step
    this.reading = reading;
    this.value = h("b");
    this.canvas = h("canvas");
    this.base = document.createElement("canvas");
    const key = legend ? h("span.mrt-key", {}, ...legend.map(([cls, words]) => h(`i.${cls}`, {}, words))) : null;
    this.el = h("figure.mrt-chart", {}, h("figcaption", {}, h("span", {}, title), key, this.value), this.canvas);
    const seek = (e) => onSeek?.(this.stepAt(e));
    this.canvas.addEventListener("pointerdown", (e) => {
      this.canvas.setPointerCapture(e.pointerId);
      this.dragging = true;
      seek(e);
    });
    this.canvas.addEventListener("pointermove", (e) => this.dragging && seek(e));
    this.canvas.addEventListener("pointerup", () => (this.dragging = false));
  }

  layout(width, height = 130) {
    this.width = Math.max(120, width);
    this.height = height;
    this.stale = true;
  }

  xs() {
    return this.x ? this.x() : null;
  }

  stepAt(e) {
    const f = (e.clientX - this.canvas.getBoundingClientRect().left - LEFT) / (this.width - LEFT - 4);
    const xs = this.xs();
    const n = this.length();
    if (!xs) return Math.max(0, Math.min(n - 1, Math.floor(f * n)));
    const target = xs[0] + f * (this.maxX - xs[0]);
    let i = xs.findIndex((v) => v > target);
    if (i < 0) i = n;
    return Math.max(0, i - 1);
  }

  length() {
    return Math.max(0, ...this.series.map((s) => s.values().length));
  }

  place(i, xs, n) {
    const span = this.width - LEFT - 4;
    if (!xs) return LEFT + ((i + 0.5) / Math.max(1, n)) * span;
    return LEFT + ((xs[i] - xs[0]) / Math.max(1e-9, this.maxX - xs[0])) * span;
  }

  paint() {
    const theme = (this.theme = readTheme(this.el));
    const c = sizeCanvas(this.base, this.width, this.height);
    c.fillStyle = theme.bg;
    c.fillRect(0, 0, this.width, this.height);
    const n = this.length();
    const xs = this.xs();
    this.maxX = xs ? Math.max(...xs) : n;
    const lines = this.series.map((s) => s.values());
    const sums = this.series.map((s, k) => (s.stack ? lines[k].map((v, i) => v + lines[k - 1][i]) : lines[k]));
    let top = this.top?.() ?? 0;
    if (!this.top) for (const line of sums) for (const v of line) if (v > top) top = v;
    this.max = top = top > 0 ? top : 1;
    const floor = this.height - BOTTOM;
    const y = (v) => floor - (Math.min(v, top) / top) * (floor - TOP);
    c.font = `10px ${FONT}`;
    c.textBaseline = "middle";
    for (const f of [0, 0.5, 1]) {
      c.fillStyle = theme.line;
      c.fillRect(LEFT, Math.round(y(top * f)), this.width - LEFT - 4, 1);
      c.fillStyle = theme.dim;
      c.textAlign = "right";
      c.fillText(this.format(top * f), LEFT - 6, y(top * f));
    }
    this.series.forEach((s, k) => this.trace(c, s, sums[k], s.stack ? sums[k - 1] : null, y, xs, n));
    this.stale = false;
    this.painted = n;
  }

  trace(c, s, line, under, y, xs, n) {
    if (!n || (s.stack && line.every((v, i) => v === under[i]))) return;
    const colour = s.colour(this.theme);
    const path = (values, backwards) => {
      for (let j = 0; j < n; j++) {
        const i = backwards ? n - 1 - j : j;
        c.lineTo(this.place(i, xs, n), y(values[i] ?? 0));
      }
    };
    c.beginPath();
    path(line, false);
    if (s.style !== "line") {
      c.save();
      if (under) path(under, true);
      else {
        c.lineTo(this.place(n - 1, xs, n), y(0));
        c.lineTo(this.place(0, xs, n), y(0));
      }
      c.fillStyle = c.strokeStyle = colour;
      c.globalAlpha = s.style === "hatch" ? 0.18 : 0.3;
      c.fill();
      if (s.style === "hatch") {
        c.clip();
        c.globalAlpha = 0.7;
        stripes(c, LEFT, TOP, this.width - LEFT, this.height - BOTTOM - TOP, 6, 1);
      }
      c.restore();
    }
    c.beginPath();
    path(line, false);
    c.strokeStyle = colour;
    c.lineWidth = 1.75;
    c.lineJoin = "round";
    c.setLineDash(s.dash ?? []);
    c.stroke();
    c.setLineDash([]);
  }

  draw(t) {
    if (!this.width) return;
    if (this.stale || this.painted !== this.length()) this.paint();
    const c = sizeCanvas(this.canvas, this.width, this.height);
    c.drawImage(this.base, 0, 0, this.width, this.height);
    const n = this.length();
    if (!n) return;
    const x = this.place(Math.max(0, Math.min(n - 1, t)), this.xs(), n);
    c.globalAlpha = 0.6;
    c.fillStyle = this.theme.bg;
    c.fillRect(x, 0, this.width - x, this.height - BOTTOM);
    c.globalAlpha = 1;
    c.fillStyle = this.theme.fg;
    c.fillRect(x - 0.75, TOP - 4, 1.5, this.height - BOTTOM - TOP + 4);
    setText(this.value, t >= 0 ? this.reading(t) : "");
  }

  retheme() {
    this.stale = true;
  }
}
