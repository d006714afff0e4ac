// The KV pool: one cell a block, in its owner's colour, filled as far as it holds tokens.

import { clamp, FONT, h, number, readTheme, setText, sizeCanvas } from "./base.js";
import { fillOwned, hue, ink, label } from "./palette.js";

/** A CSS colour as the little-endian number that a pixel is. */
function rgba(colour) {
  if (!rgba.cache) {
    rgba.cache = new Map();
    rgba.ctx = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  }
  if (!rgba.cache.has(colour)) {
    rgba.ctx.fillStyle = colour;
    rgba.ctx.fillRect(0, 0, 1, 1);
    rgba.cache.set(colour, new Uint32Array(rgba.ctx.getImageData(0, 0, 1, 1).data.buffer)[0]);
  }
  return rgba.cache.get(colour);
}

function mix(a, b, share) {
  let out = 0xff000000;
  for (const s of [0, 8, 16]) out |= Math.round(((a >> s) & 255) * (1 - share) + ((b >> s) & 255) * share) << s;
  return out >>> 0;
}

const WHOLE = 8192; // a pool up to this size is drawn whole, a larger one as far as it was ever used
const LEAST = 512; // cells of a larger one at least
const MOST = 32768; // and at most: a canvas has an end too

export class Pool {
  constructor(model, { t, onHover }) {
    this.model = model;
    this.t = t;
    this.canvas = h("canvas.mrt-pool-canvas");
    this.rest = h("div.mrt-dim.mrt-pool-rest");
    this.el = h("div.mrt-pool", {}, h("div.mrt-pool-scroll", {}, this.canvas), this.rest);
    this.lit = null;
    this.hot = -1;
    this.fill = new Int16Array(model.blocks);
    this.canvas.addEventListener("pointermove", (e) => {
      const box = this.canvas.getBoundingClientRect();
      const col = Math.floor((e.clientX - box.left) / this.cell);
      const row = Math.floor((e.clientY - box.top) / this.cell);
      const b = row * this.cols + col;
      const ok = col >= 0 && col < this.cols && b >= 0 && b < this.shown;
      this.hot = ok ? b : -1;
      onHover?.(this.hot, e);
    });
    this.canvas.addEventListener("pointerleave", () => {
      this.hot = -1;
      onHover?.(-1);
    });
  }

  /** The largest square cells with which all blocks fit the given room. */
  layout(width, height) {
    this.room = [width, height];
    const n = (this.shown = this.cells());
    const { blocks, top } = this.model;
    const words = top > n ? this.t("pool.undrawn", { n: number(blocks - n) }) : this.t("pool.unused", { n: number(blocks - n) });
    setText(this.rest, blocks > n ? words : "");
    this.cell = clamp(Math.floor(Math.sqrt((width * height) / n)), 4, 30);
    while (this.cell > 4 && Math.ceil(n / Math.floor(width / this.cell)) * this.cell > height) this.cell -= 1;
    this.cols = Math.max(1, Math.floor(width / this.cell));
    this.rowsN = Math.ceil(n / this.cols);
    this.width = this.cols * this.cell;
    this.height = this.rowsN * this.cell;
    this.theme = readTheme(this.el);
    if (this.state) this.draw(this.state, this.at);
  }

  /** How many cells to draw; of a huge pool only as many as were ever used, in rows of some size. */
  cells() {
    const { blocks, top } = this.model;
    if (blocks <= WHOLE) return Math.max(1, blocks);
    return Math.min(blocks, MOST, Math.max(LEAST, Math.ceil(top / LEAST) * LEAST));
  }

  draw(state, t) {
    if (this.room && this.cells() !== this.shown) this.layout(...this.room);
    this.state = state;
    this.at = t;
    if (!this.cols) return;
    const { cell, cols, theme, model, fill, lit } = this;
    const c = sizeCanvas(this.canvas, this.width, this.height);
    const gap = cell >= 8 ? 2 : 1;
    const size = cell - gap;
    const full = model.blockSize;
    fill.fill(0);
    state.eachBlock((b, id, k, n) => {
      if (n > fill[b]) fill[b] = n;
    });
    if (cell < 9) return this.drawSmall(c, state, t);
    c.fillStyle = theme.bg;
    c.fillRect(0, 0, this.width, this.height);
    const litTable = lit === null ? null : new Map((state.live.get(lit)?.table ?? []).map((b, k) => [b, k]));
    c.textAlign = "center";
    c.textBaseline = "middle";
    for (let b = 0; b < this.shown; b++) {
      const x = (b % cols) * cell;
      const y = Math.floor(b / cols) * cell;
      const id = state.owner[b];
      c.fillStyle = theme.soft;
      c.fillRect(x, y, size, size);
      if (id >= 0) this.owned(c, b, id, x, y, size, fill[b] / full, litTable);
      else if (state.last[b] >= 0 && size >= 5) this.ghost(c, state.last[b], x, y, size);
      const age = t - state.changed[b];
      if (age >= 0 && age < 2) this.flash(c, x, y, size, age, id >= 0);
      if (litTable?.has(b)) this.number(c, String(litTable.get(b)), x, y, size, ink(id));
      else if (id >= 0 && state.refs[b] > 1) this.number(c, `×${state.refs[b]}`, x, y, size, ink(id));
    }
    if (this.hot >= 0) {
      const x = (this.hot % cols) * cell;
      const y = Math.floor(this.hot / cols) * cell;
      c.strokeStyle = theme.fg;
      c.lineWidth = 1.5;
      c.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
    }
  }

  /** Thousands of small cells: written as pixels, some ten times faster than as rectangles. */
  drawSmall(c, state, t) {
    const { model, theme, lit, fill } = this;
    const scale = this.canvas.width / this.width;
    const px = Math.round(this.cell * scale);
    const w = px * this.cols;
    const hgt = px * this.rowsN;
    if (this.image?.width !== w || this.image?.height !== hgt) this.image = new ImageData(w, hgt);
    const out = new Uint32Array(this.image.data.buffer);
    const bg = rgba(theme.bg);
    const soft = mix(bg, rgba(theme.fg), 0.07);
    const fg = rgba(theme.fg);
    out.fill(bg);
    const tones = (this.tones?.bg === bg ? this.tones : (this.tones = { bg, full: new Map() })).full;
    const mine = lit === null ? null : new Set(state.live.get(lit)?.table ?? []);
    const side = px - Math.max(1, Math.round(scale));
    for (let b = 0; b < this.shown; b++) {
      const id = state.owner[b];
      let high = soft;
      let low = soft;
      let level = side;
      if (id >= 0) {
        let tone = tones.get(id % 8);
        if (!tone) tones.set(id % 8, (tone = [0.25, 1, 0.08, 0.2].map((a) => mix(bg, rgba(hue(id)), a))));
        const dim = mine && !mine.has(b);
        high = tone[dim ? 2 : 0];
        low = tone[dim ? 3 : 1];
        level = side - Math.ceil((side * fill[b]) / model.blockSize);
      }
      const ring = (t === state.changed[b] && t >= 0) || b === this.hot;
      const x0 = (b % this.cols) * px;
      const y0 = Math.floor(b / this.cols) * px;
      for (let y = 0; y < side; y++) {
        const at = (y0 + y) * w + x0;
        out.fill(y < level ? high : low, at, at + side);
        if (!ring) continue;
        if (y === 0 || y === side - 1) out.fill(fg, at, at + side);
        else out[at] = out[at + side - 1] = fg;
      }
      if (id < 0 && state.last[b] >= 0 && side > 3) {
        const tone = mix(bg, rgba(hue(state.last[b])), 0.5);
        out[(y0 + side - 2) * w + x0 + side - 2] = out[(y0 + side - 2) * w + x0 + side - 3] = tone;
        out[(y0 + side - 3) * w + x0 + side - 2] = out[(y0 + side - 3) * w + x0 + side - 3] = tone;
      }
      if (id >= 0 && state.refs[b] > 1) out[(y0 + (side >> 1)) * w + x0 + (side >> 1)] = fg;
    }
    c.putImageData(this.image, 0, 0);
  }

  owned(c, b, id, x, y, size, share, litTable) {
    c.globalAlpha = litTable && !litTable.has(b) ? 0.18 : 1;
    const alpha = c.globalAlpha;
    // reserved or not yet filled: a pale cell; the tokens in it rise from the bottom
    c.globalAlpha = 0.25 * alpha;
    c.fillStyle = hue(id);
    c.fillRect(x, y, size, size);
    c.globalAlpha = alpha;
    const hgt = share >= 1 ? size : Math.max(share > 0 ? 1 : 0, size * share);
    fillOwned(c, id, x, y + size - hgt, size, hgt);
    if (this.state.refs[b] > 1 && size < 14) {
      c.fillStyle = this.theme.fg;
      c.fillRect(x + size / 2 - 1, y + size / 2 - 1, 2, 2);
    }
    c.globalAlpha = 1;
  }

  ghost(c, id, x, y, size) {
    c.globalAlpha = 0.5;
    c.fillStyle = hue(id);
    const s = Math.max(2, Math.round(size / 5));
    c.fillRect(x + size - s - 1, y + size - s - 1, s, s);
    c.globalAlpha = 1;
  }

  flash(c, x, y, size, age, taken) {
    c.globalAlpha = age === 0 ? 1 : 0.35;
    c.strokeStyle = taken ? this.theme.fg : this.theme.dim;
    c.lineWidth = size >= 10 ? 2 : 1;
    if (!taken && size >= 8) c.setLineDash([2, 2]);
    c.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  number(c, text, x, y, size, colour) {
    if (size < 11) return;
    c.font = `600 ${Math.min(12, Math.round(size * 0.48))}px ${FONT}`;
    c.lineWidth = 2.5;
    c.strokeStyle = this.theme.bg;
    c.globalAlpha = 0.25;
    c.strokeText(text, x + size / 2, y + size / 2 + 0.5);
    c.globalAlpha = 1;
    c.fillStyle = colour;
    c.fillText(text, x + size / 2, y + size / 2 + 0.5);
  }

  /** A block in words: who holds it, which tokens it holds, whose it was. */
  describe(b) {
    const { state, model, t } = this;
    const head = t("tip.block", { b });
    const holders = state.holders(b);
    if (!holders.length) {
      const was = state.last[b];
      return [head, was >= 0 ? t("tip.was", { r: label(was) }) : t("tip.free")];
    }
    const lines = [head];
    for (const id of holders.slice(0, 4)) {
      const r = state.live.get(id);
      const k = r.table.indexOf(b);
      const from = k * model.blockSize;
      const to = Math.min(from + model.blockSize, r.computed);
      const where = { r: label(id), k, n: Math.max(0, to - from), size: model.blockSize, from, to: to - 1 };
      lines.push(t(to > from ? "tip.holds" : "tip.reserved", where));
      const prompt = model.requests.get(id)?.num_prompt ?? 0;
      const text = model.text(id, Math.max(0, to - prompt)).slice(model.text(id, Math.max(0, from - prompt)).length);
      if (text.trim()) lines.push(`“${text.trim().slice(0, 60)}”`);
    }
    if (holders.length > 1) lines.push(t("tip.shared", { n: holders.length }));
    return lines;
  }

  retheme() {
    this.theme = readTheme(this.el);
    if (this.state) this.draw(this.state, this.at);
  }
}
