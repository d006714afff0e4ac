// predict's drawn curve: the learner drags a line over given x positions; later the truth is laid beside it.

import { clamp, FONT, h, number, onTheme, readTheme, sizeCanvas, translator } from "./base.js";
import { niceTick } from "./gantt.js";

const PAD = { left: 56, right: 18, top: 28, bottom: 40 };

export class CurveView {
  constructor(el, model) {
    this.model = model;
    this.t = translator(model.get("_options").lang);
    this.canvas = h("canvas");
    this.root = h("div.mrt.mrt-curve", { tabindex: 0, "aria-label": this.t("predict.draw") }, this.canvas);
    this.root.setAttribute("data-lm-suppress-shortcuts", "true");
    this.root.style.cssText = "border:0;padding:0";
    el.append(this.root);
    this.pick = 0;
    this.canvas.addEventListener("pointerdown", (e) => {
      if (this.locked) return;
      this.canvas.setPointerCapture(e.pointerId);
      this.before = null;
      this.dragging = true;
      this.drag(e);
    });
    this.canvas.addEventListener("pointermove", (e) => this.dragging && this.drag(e));
    this.canvas.addEventListener("pointerup", () => this.drop());
    this.root.addEventListener("keydown", (e) => this.key(e));
    model.on("change:guess change:truth change:locked change:y_max", () => this.draw());
    this.resize = new ResizeObserver(() => this.layout());
    this.resize.observe(el);
    this.offTheme = onTheme(() => requestAnimationFrame(() => this.draw()));
    this.layout();
    this.root.mrtView = this;
  }

  get locked() {
    return this.model.get("locked");
  }

  layout() {
    this.width = Math.max(240, Math.min(620, this.root.parentElement.clientWidth || 620));
    this.height = 280;
    this.draw();
  }

  x(i) {
    const n = this.model.get("x").length;
    return PAD.left + (n > 1 ? i / (n - 1) : 0.5) * (this.width - PAD.left - PAD.right);
  }

  y(v) {
    return this.height - PAD.bottom - (v / this.top()) * (this.height - PAD.top - PAD.bottom);
  }

  top() {
    const truth = this.model.get("truth") ?? [];
    return Math.max(this.model.get("y_max"), ...truth) || 1;
  }

  at(e) {
    const box = this.canvas.getBoundingClientRect();
    const n = this.model.get("x").length;
    const f = (e.clientX - box.left - PAD.left) / (this.width - PAD.left - PAD.right);
    const g = (this.height - PAD.bottom - (e.clientY - box.top)) / (this.height - PAD.top - PAD.bottom);
    return { i: clamp(Math.round(f * (n - 1)), 0, n - 1), v: clamp(g, 0, 1) * this.top() };
  }

  /** Every column the pointer passed over gets a value, also those between two events. */
  drag(e) {
    const to = this.at(e);
    const from = this.before ?? to;
    const guess = this.model.get("guess").slice();
    while (guess.length < this.model.get("x").length) guess.push(null);
    const steps = Math.max(1, Math.abs(to.i - from.i));
    for (let k = 0; k <= steps; k++) {
      const f = k / steps;
      guess[Math.round(from.i + (to.i - from.i) * f)] = from.v + (to.v - from.v) * f;
    }
    this.before = to;
    this.pick = to.i;
    this.model.set("guess", guess);
  }

  drop() {
    if (!this.dragging) return;
    this.dragging = false;
    this.model.save_changes();
  }

  key(e) {
    if (this.locked || !e.key.startsWith("Arrow")) return;
    e.preventDefault();
    e.stopPropagation();
    const n = this.model.get("x").length;
    if (e.key === "ArrowLeft") this.pick = Math.max(0, this.pick - 1);
    else if (e.key === "ArrowRight") this.pick = Math.min(n - 1, this.pick + 1);
    else {
      const guess = this.model.get("guess").slice();
      while (guess.length < n) guess.push(null);
      const by = (e.key === "ArrowUp" ? 1 : -1) * (this.top() / 25);
      const old = guess[this.pick] ?? guess[Math.max(0, this.pick - 1)] ?? this.top() / 2;
      guess[this.pick] = clamp(old + by, 0, this.top());
      this.model.set("guess", guess);
      this.model.save_changes();
    }
    this.draw();
  }

  draw() {
    const { model, width, height } = this;
    const theme = readTheme(this.root);
    const c = sizeCanvas(this.canvas, width, height);
    this.root.classList.toggle("is-locked", this.locked);
    c.fillStyle = theme.bg;
    c.fillRect(0, 0, width, height);
    this.axes(c, theme);
    const guess = model.get("guess");
    const truth = model.get("truth");
    this.line(c, guess, theme.amber, [6, 4], this.t("predict.yours"));
    if (truth?.length) this.line(c, truth, theme.blue, [], this.t("predict.truth"));
    const drawn = guess.some((v) => v !== null);
    if (!drawn && !this.locked) {
      c.fillStyle = theme.dim;
      c.font = `14px ${FONT}`;
      c.textAlign = "center";
      c.fillText(this.t("predict.draw"), (width + PAD.left) / 2, height / 2);
    }
    if (!this.locked && document.activeElement === this.root) {
      c.fillStyle = theme.accent;
      c.fillRect(this.x(this.pick) - 4, height - PAD.bottom + 1, 8, 3);
    }
  }

  axes(c, theme) {
    const { model, width, height } = this;
    const top = this.top();
    const tick = niceTick(top, 4, 0);
    c.font = `11px ${FONT}`;
    c.textBaseline = "middle";
    for (let v = 0; v <= top * 1.001; v += tick) {
      c.fillStyle = theme.line;
      c.fillRect(PAD.left, Math.round(this.y(v)), width - PAD.left - PAD.right, 1);
      c.fillStyle = theme.dim;
      c.textAlign = "right";
      c.fillText(number(+v.toPrecision(4), v < 10 && v % 1 ? 1 : 0), PAD.left - 8, this.y(v));
    }
    const xs = model.get("x");
    const every = Math.ceil(xs.length / 10);
    c.textAlign = "center";
    xs.forEach((x, i) => {
      if (i % every === 0) c.fillText(number(x, x % 1 ? 1 : 0), this.x(i), height - PAD.bottom + 13);
    });
    const o = model.get("_options");
    c.fillStyle = theme.dim;
    c.fillText(o.x_label ?? "", (width + PAD.left) / 2, height - 9);
    c.textAlign = "left";
    c.fillText(o.y_label ?? "", 4, 8);
  }

  line(c, values, colour, dash, name) {
    c.strokeStyle = c.fillStyle = colour;
    c.lineWidth = 2.5;
    c.lineJoin = "round";
    c.setLineDash(dash);
    c.beginPath();
    let last = -1;
    values.forEach((v, i) => {
      if (v === null || v === undefined) return;
      if (last === i - 1 && i) c.lineTo(this.x(i), this.y(v));
      else c.moveTo(this.x(i), this.y(v));
      last = i;
    });
    c.stroke();
    c.setLineDash([]);
    values.forEach((v, i) => {
      if (v === null || v === undefined || values.length > 40) return;
      c.beginPath();
      c.arc(this.x(i), this.y(v), 3.5, 0, 7);
      c.fill();
    });
    if (last < 1) return;
    c.font = `600 12px ${FONT}`;
    c.textAlign = "right";
    c.fillText(name, this.x(last) - 4, clamp(this.y(values[last]) - 13, 10, this.height - PAD.bottom - 8));
  }

  destroy() {
    this.resize.disconnect();
    this.offTheme();
  }
}

export default {
  render({ model, el }) {
    const view = new CurveView(el, model);
    return () => view.destroy();
  },
};
