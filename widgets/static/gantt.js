// The timeline: one line a slot, one column a step. Drawn once off screen; a frame only copies it and
// draws the cursor, so its cost does not depend on the length of the run.

import { clamp, FONT, h, readTheme, sizeCanvas } from "./base.js";
import { KIND } from "./model.js";
import { fillOwned, hue, ink, label, stripes } from "./palette.js";

const GUTTER = 30;
const AXIS = 20;
const PALE = 0.34; // how much of a colour is left where a step is still to come

export class Gantt {
  constructor(model, { t, onSeek, onHover }) {
    this.model = model;
    this.t = t;
    this.onHover = onHover;
    this.canvas = h("canvas.mrt-gantt-canvas");
    this.base = document.createElement("canvas");
    this.pale = document.createElement("canvas"); // the same, as what is still to come is shown
    this.names = new Map(); // where names stand on the base picture: "slot:step" -> [id, x, y, width, height]
    this.el = h("div.mrt-gantt", {}, this.canvas);
    this.drawn = 0; // steps already on the base picture
    this.at = -1;
    this.lit = null;
    const seek = (e) => onSeek?.(this.stepAt(e));
    this.canvas.addEventListener("pointerdown", (e) => {
      this.canvas.setPointerCapture(e.pointerId);
      this.dragging = true;
      seek(e);
    });
    this.canvas.addEventListener("pointermove", (e) => (this.dragging ? seek(e) : this.hover(e)));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => (this.dragging = false));
    this.canvas.addEventListener("pointerleave", () => this.onHover?.(null));
  }

  layout(width) {
    const n = this.model.slots;
    this.rowH = n <= 4 ? 34 : n <= 6 ? 26 : n <= 10 ? 16 : n <= 20 ? 12 : n <= 40 ? 8 : 5;
    this.width = Math.max(200, width);
    this.height = n * this.rowH + AXIS;
    this.drawn = 0;
    this.room = 0;
    this.draw(this.at);
  }

  /** Put columns where their time is, on an axis of `total`; without it every step is as wide as any other. */
  byTime(total) {
    this.total = total;
    this.drawn = 0;
    this.room = 0;
  }

  /** The left edge of step t's column. */
  edge(t) {
    if (!this.total) return GUTTER + t * this.colW;
    const s = this.model.s;
    const at = t < s.time.length ? s.time[t] : s.end[t - 1];
    return GUTTER + (at / this.total) * (this.width - GUTTER - 2);
  }

  /** The right edge: the next column's left, unless the clock jumped in between. */
  right(t) {
    return this.total ? GUTTER + (this.model.s.end[t] / this.total) * (this.width - GUTTER - 2) : this.edge(t + 1);
  }

  /** Steps the axis has room for: the run, or while it still grows the next round number. */
  axisSteps() {
    const n = Math.max(this.model.growing ? this.model.length : this.model.work, this.least ?? 1);
    if (this.total) return this.total;
    if (!this.model.growing) return Math.max(n, 12);
    let room = 40;
    while (room < n) room *= 1.5;
    return Math.ceil(room / 10) * 10;
  }

  stepAt(e) {
    const x = e.clientX - this.canvas.getBoundingClientRect().left - GUTTER;
    const f = x / (this.width - GUTTER - 2);
    const t = this.total ? this.model.stepAtTime(f * this.total) + 1 : Math.floor(x / this.colW);
    return clamp(t, 0, this.model.length - 1);
  }

  hover(e) {
    const y = e.clientY - this.canvas.getBoundingClientRect().top;
    const slot = Math.floor(y / this.rowH);
    const t = this.stepAt(e);
    const row = this.model.rows[t];
    if (!row || slot < 0 || slot >= this.model.slots || row.ids[slot] < 0) return this.onHover?.(null);
    this.onHover?.(row.ids[slot], e, this.describe(t, slot, row));
  }

  describe(t, slot, row) {
    const kind = ["", "prefill", "decode", "wasted", "held"][row.kinds[slot]];
    const step = this.model.number(t);
    return this.t("tip.gantt", { r: label(row.ids[slot]), slot, step, kind: this.t(`legend.${kind}`) });
  }

  paintBase() {
    const room = this.axisSteps();
    if (room !== this.room || this.drawn === 0 || this.drawn > this.model.length) {
      this.room = room;
      this.colW = this.total ? (this.width - GUTTER - 2) / room : Math.min(26, (this.width - GUTTER - 2) / room);
      this.theme = readTheme(this.el);
      this.ctxB = sizeCanvas(this.base, this.width, this.height);
      this.ctxB.fillStyle = this.theme.bg;
      this.ctxB.fillRect(0, 0, this.width, this.height);
      this.frame();
      this.drawn = 0;
      this.names.clear();
      this.paled = -1;
    }
    if (this.drawn < this.model.length) this.paintSteps(this.drawn, this.model.length);
    this.drawn = this.model.length;
  }

  /** What is to come: pale bars, but names in the page's own ink, since a pale name is not read. */
  paintPale() {
    if (this.paled === this.drawn) return;
    this.paled = this.drawn;
    const { theme } = this;
    const c = sizeCanvas(this.pale, this.width, this.height);
    const veil = (x, y, w, hgt, id) => {
      c.fillStyle = theme.bg;
      c.fillRect(x, y, w, hgt);
      c.globalAlpha = PALE;
      c.fillStyle = id === undefined ? theme.bg : hue(id);
      c.fillRect(x, y, w, hgt);
      if (id === undefined) c.drawImage(this.base, 0, 0, this.width, this.height);
      c.globalAlpha = 1;
    };
    veil(0, 0, this.width, this.height);
    c.font = `600 10px ${FONT}`;
    c.textBaseline = "middle";
    for (const [id, x, y, w, hgt] of this.names.values()) {
      veil(x, y, w, hgt, id);
      c.fillStyle = theme.fg;
      c.fillText(label(id), x + 2, y + hgt / 2 + 0.5);
    }
  }

  frame() {
    const { ctxB: c, rowH, theme } = this;
    c.font = `10px ${FONT}`;
    c.textBaseline = "middle";
    c.textAlign = "right";
    const every = rowH >= 12 ? 1 : rowH >= 8 ? 4 : 8;
    for (let i = 0; i < this.model.slots; i++) {
      c.fillStyle = theme.soft;
      c.fillRect(GUTTER, i * rowH + 1, this.room * this.colW, rowH - (rowH > 6 ? 2 : 1));
      c.fillStyle = theme.dim;
      if (i % every === 0) c.fillText(String(i), GUTTER - 8, i * rowH + rowH / 2 + 0.5);
    }
    c.textAlign = "center";
    const y = this.model.slots * rowH;
    const tick = niceTick(this.room, (this.width - GUTTER) / 64, this.total && this.model.unit !== "step" ? 0 : 1);
    for (let s = 0; s <= this.room; s += tick) {
      const x = GUTTER + s * this.colW;
      c.fillStyle = theme.line;
      c.fillRect(x, y, 1, 4);
      c.fillStyle = theme.dim;
      if (x < this.width - 8) c.fillText(String(+s.toPrecision(6)), x, y + 12);
    }
  }

  /** Same owner and kind side by side is one rectangle: a few hundred instead of slots x steps. */
  paintSteps(from, to) {
    const rows = this.model.rows;
    for (let slot = 0; slot < this.model.slots; slot++) {
      let a = from;
      // a bar that goes on is drawn again from its beginning: no seam, and its name gets room
      while (a > 0 && a < to && this.goesOn(slot, a)) a -= 1;
      while (a < to) {
        const id = rows[a].ids[slot];
        const kind = rows[a].kinds[slot];
        let b = a + 1;
        while (b < to && this.goesOn(slot, b)) b++;
        if (id >= 0 && kind !== KIND.empty) this.segment(slot, a, b, id, kind, this.startOf(slot, a, id));
        a = b;
      }
    }
  }

  /** Whether step b only continues what the slot did in the step before. */
  goesOn(slot, b) {
    const [x, y] = [this.model.rows[b - 1], this.model.rows[b]];
    return x.ids[slot] === y.ids[slot] && x.kinds[slot] === y.kinds[slot] && !this.gap(b);
  }

  /** The clock jumped before step b: nothing ran in between, and nothing is drawn there. */
  gap(b) {
    return this.total > 0 && this.model.s.time[b] - this.model.s.end[b - 1] > this.total / 500;
  }

  startOf(slot, a, id) {
    return a === 0 || this.model.rows[a - 1].ids[slot] !== id;
  }

  segment(slot, a, b, id, kind, first) {
    const { ctxB: c, rowH } = this;
    const left = this.edge(a);
    const x = left + (first && this.edge(b) - left >= 4 ? 1 : 0);
    const w = Math.max(0.75, this.right(b - 1) - x);
    const y = slot * rowH + 1;
    const hgt = rowH - (rowH > 6 ? 2 : 1);
    if (kind === KIND.decode || kind === KIND.prefill) {
      fillOwned(c, id, x, y, w, hgt);
      if (kind === KIND.prefill) this.hatch(x, y, w, hgt, ink(id), PALETTE.hatch.prefill);
    } else if (kind === KIND.wasted) {
      c.fillStyle = this.theme.soft;
      c.fillRect(x, y, w, hgt);
      c.globalAlpha = PALETTE.tint;
      c.fillStyle = hue(id);
      c.fillRect(x, y, w, hgt);
      c.globalAlpha = 1;
      this.hatch(x, y, w, hgt, PALETTE.grey, PALETTE.hatch.wasted);
    } else {
      c.fillStyle = hue(id);
      c.fillRect(x, y + (hgt - PALETTE.held) / 2, w, PALETTE.held);
    }
    const text = label(id);
    if (rowH >= 12 && kind === KIND.decode && w > 9 + text.length * 7) {
      c.font = `600 10px ${FONT}`;
      c.textAlign = "left";
      c.textBaseline = "middle";
      c.fillStyle = hue(id);
      c.fillRect(x + 2, y + 1, text.length * 7 + 3, hgt - 2);
      this.names.set(`${slot}:${a}`, [id, x + 2, y + 1, text.length * 7 + 3, hgt - 2]);
      c.fillStyle = ink(id);
      c.fillText(text, x + 4, y + hgt / 2 + 0.5);
    }
  }

  hatch(x, y, w, hgt, colour, alpha) {
    const c = this.ctxB;
    c.save();
    c.beginPath();
    c.rect(x, y, w, hgt);
    c.clip();
    c.strokeStyle = colour;
    c.globalAlpha = alpha;
    stripes(c, x, y, w, hgt, PALETTE.hatch.gap, PALETTE.hatch.width);
    c.restore();
  }

  /** Show the run up to step t, or up to a moment of the clock; what is still to come is pale. */
  draw(t, now) {
    this.at = t;
    this.now = this.total ? now : undefined;
    if (!this.width) return;
    if (!this.model.growing) t = Math.min(t, this.model.work - 1); // the record that only ends a run has no column
    this.paintBase();
    const c = sizeCanvas(this.canvas, this.width, this.height);
    c.drawImage(this.base, 0, 0, this.width, this.height);
    const y = this.model.slots * this.rowH;
    const reached = this.now === undefined ? 0 : GUTTER + (this.now / this.total) * (this.width - GUTTER - 2);
    const x = Math.max(reached, t < 0 ? GUTTER : this.right(t));
    const mid = t < 0 || reached ? x : x - Math.min(13, Math.max(1, (x - this.edge(t)) / 2));
    this.paintPale();
    c.save();
    c.beginPath();
    c.rect(x, 0, this.width - x, y);
    c.clip();
    c.drawImage(this.pale, 0, 0, this.width, this.height);
    c.restore();
    if (this.lit !== null) this.outline(c, this.lit);
    if (t < 0 && !reached) return;
    c.fillStyle = this.theme.fg;
    c.fillRect(Math.round(mid) - 0.5, 0, 1.5, y + 3);
    c.beginPath();
    c.moveTo(mid - 5, y + 9);
    c.lineTo(mid + 5, y + 9);
    c.lineTo(mid, y + 2);
    c.fill();
  }

  outline(c, id) {
    c.strokeStyle = this.theme.fg;
    c.lineWidth = 1.5;
    const life = this.model.life.get(id);
    const end = Math.min(this.model.length, (life?.released ?? life?.done ?? this.model.length) + 1);
    for (let slot = 0; slot < this.model.slots; slot++) {
      let from = -1;
      for (let s = life?.admitted ?? 0; s <= end; s++) {
        const mine = s < end && this.model.rows[s]?.ids[slot] === id;
        if (mine && from < 0) from = s;
        else if (!mine && from >= 0) {
          const x = this.edge(from);
          c.strokeRect(x + 0.5, slot * this.rowH + 0.5, this.right(s - 1) - x, this.rowH - 1);
          from = -1;
        }
      }
    }
  }

  retheme() {
    this.drawn = 0;
    this.draw(this.at, this.now);
  }
}

export function niceTick(span, count, least = 1) {
  const raw = Math.max(least, span / Math.max(1, count));
  const base = 10 ** Math.floor(Math.log10(Math.max(raw, 1e-6)));
  return [1, 2, 5, 10].map((m) => m * base).find((v) => v >= raw) ?? 10 * base;
}
