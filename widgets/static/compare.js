// Two runs of the same requests under one clock.

import { h, moment, number, onTheme, setClass, setText, translator, unpack } from "./base.js";
import { Chart } from "./charts.js";
import { Gantt } from "./gantt.js";
import { TraceModel } from "./model.js";
import { label, paint } from "./palette.js";
import { Kpis, Tip } from "./panels.js";
import { Pool } from "./pool.js";
import { Slots } from "./slots.js";
import { ganttKey } from "./stage.js";
import { Transport, easySpeed } from "./transport.js";

const TICKS = 400; // positions of the slider when the clock counts seconds

/** One of the two: figures, who waits, slots, timeline, blocks. */
class Half {
  constructor(model, name, side, { t, onHover, onSeek }) {
    this.model = model;
    this.t = t;
    this.at = -1;
    this.slack = 0;
    this.lit = null;
    this.kpis = new Kpis(model, { t, only: ["finished", "batch", "occupancy", "kv"] });
    this.slots = new Slots(model, { t, onHover });
    this.gantt = new Gantt(model, { t, onSeek, onHover });
    this.pool = new Pool(model, { t, onHover: (b, e) => this.hoverBlock(b, e, onHover) });
    this.chips = Array.from({ length: 18 }, () => {
      const c = { id: -1, chip: h("span.mrt-chip") };
      c.el = h("span.mrt-wait", {}, c.chip);
      c.el.addEventListener("pointerenter", (e) => onHover(c.id, e));
      c.el.addEventListener("pointerleave", () => onHover(null));
      return c;
    });
    this.count = h("span");
    this.more = h("span");
    this.over = h("small");
    this.ganttBox = h("div", {}, this.gantt.el);
    this.poolBox = h("div.mrt-pool-box", {}, this.pool.el);
    const strip = h("div.mrt-strip", {}, this.count, ...this.chips.map((c) => c.el), this.more);
    const title = h("h3", {}, name, this.over);
    this.el = h(`section.mrt-half.is-${side}`, {}, title, this.kpis.el, strip, this.slots.el, this.ganttBox, this.poolBox);
  }

  layout() {
    this.gantt.layout(this.ganttBox.clientWidth);
    this.pool.layout(this.poolBox.clientWidth, 120);
  }

  /** now: the common clock's time, which may be past the end of step t while this engine has nothing to do. */
  draw(t, now = this.now) {
    this.at = t;
    this.now = now;
    const { model } = this;
    const state = model.stateAt(t);
    const next = model.s.time[t + 1] ?? Infinity;
    const idle = now !== undefined && t >= 0 && t < model.length - 1 && next >= now && now - model.s.end[t] > 1e-9 * now + this.slack;
    this.kpis.draw(t);
    this.slots.draw(state, t, this.lit, idle);
    this.pool.lit = this.gantt.lit = this.lit;
    this.gantt.draw(t, now);
    this.pool.draw(state, t);
    const waiting = [...state.swapped.keys(), ...state.waiting];
    setText(this.count, `${this.t("compare.waiting")} ${waiting.length}`);
    const room = Math.max(2, Math.min(this.chips.length, Math.floor((this.el.clientWidth - 110) / 41)));
    this.chips.forEach((c, i) => {
      c.id = i < room ? (waiting[i] ?? -1) : -1;
      setClass(c.el, c.id < 0 ? "mrt-wait is-none" : "mrt-wait");
      if (c.id >= 0) {
        paint(c.el, c.id);
        setText(c.chip, label(c.id));
      }
    });
    setText(this.more, waiting.length > room ? `+${waiting.length - room}` : "");
    const over = model.length > 0 && t >= this.last();
    this.el.classList.toggle("is-over", over);
    setText(this.over, over ? this.t("compare.over", { at: this.ending() }) : "");
  }

  /** The step in which the last token came out; without tokens, the last step. */
  last() {
    return this.model.lastToken >= 0 ? this.model.lastToken : this.model.length - 1;
  }

  ending() {
    const { model, t } = this;
    return model.unit === "step" ? t("compare.at_step", { n: model.number(this.last()) }) : moment(model, model.s.end[this.last()]);
  }

  hoverBlock(b, e, onHover) {
    if (b < 0) return onHover(null);
    const owner = this.model.stateAt(this.at).owner[b];
    onHover(owner >= 0 ? owner : null);
    onHover(owner >= 0 ? owner : -1, e, this.pool.describe(b));
  }
}

export class CompareView {
  constructor(el, a, b, { lang = "zh", names = [], clock = "time", title = "" } = {}) {
    const t = (this.t = translator(lang));
    this.models = [a, b];
    this.names = [0, 1].map((i) => names[i] || String(this.models[i].meta.policy ?? "AB"[i]));
    this.root = h("div.mrt.mrt-compare", { lang: lang === "zh" ? "zh-CN" : "en" });
    this.seconds = a.unit === "s" && b.unit === "s";
    this.clock = this.seconds ? clock : "time";
    this.tip = new Tip(this.root);
    const hooks = { t, onHover: (id, e, words) => this.hover(id, e, words) };
    this.halves = [0, 1].map(
      (i) => new Half(this.models[i], this.names[i], "ab"[i], { ...hooks, onSeek: (s) => this.transport.seek(this.positionOf(i, s)) }),
    );
    this.transport = new Transport({ t, count: () => this.count, onMove: () => this.draw(), label: (at) => this.where(at) });
    const legend = [["mrt-k-a", this.names[0]], ["mrt-k-b", this.names[1]]];
    const chart = (key, series) =>
      new Chart({
        title: t(`compare.${key}`),
        legend,
        series: [
          { values: () => this.curve(0, series), colour: (theme) => theme.amber, style: "line", dash: [6, 4] },
          { values: () => this.curve(1, series), colour: (theme) => theme.blue, style: "line" },
        ],
        format: (v) => number(Math.round(v)),
        reading: (k) => this.lead(k, series),
        onSeek: (k) => this.transport.seek(k),
      });
    this.charts = [chart("finished", "finished"), chart("tokens", "emitted")];
    this.score = h("div.mrt-score", {}, ...this.charts.map((c) => c.el));
    const head = h("header.mrt-head", {}, h("h2", {}, title || t("compare.title")), ganttKey(t));
    if (this.seconds) this.transport.el.append(this.clockPicker());
    this.root.prepend(head, this.transport.el, this.score, h("div.mrt-halves", {}, ...this.halves.map((x) => x.el)));
    this.transport.listen(this.root);
    el.append(this.root);
    this.setClock(this.clock);
    this.resize = new ResizeObserver(() => this.relayout());
    this.resize.observe(this.root);
    this.offTheme = onTheme(() => requestAnimationFrame(() => this.retheme()));
    this.transport.move(-1);
    this.root.mrtView = this;
  }

  clockPicker() {
    const { t } = this;
    const pick = h("select.mrt-clock", { "aria-label": t("compare.clock"), title: t("compare.clock") });
    pick.append(h("option", { value: "time", selected: this.clock === "time" }, t("compare.by_time")));
    pick.append(h("option", { value: "steps", selected: this.clock === "steps" }, t("compare.by_step")));
    pick.addEventListener("change", () => {
      this.setClock(pick.value);
      this.transport.seek(-1);
    });
    return pick;
  }

  setClock(clock) {
    const { t } = this;
    this.clock = clock;
    const total = Math.max(...this.models.map((m) => (m.length ? m.s.end[Math.max(0, m.work - 1)] : 0)));
    this.curves = new Map();
    if (clock === "steps") {
      this.count = Math.max(...this.models.map((m) => m.work || m.length));
    } else {
      this.count = this.seconds ? TICKS : Math.ceil(total);
      this.tick = total / Math.max(1, this.count);
    }
    if (clock === "time" && this.seconds) {
      const speeds = [0.1, 0.25, 0.5, 1, 2, 4, 8].map((n) => [n / this.tick, t("compare.speed", { n })]);
      this.transport.setSpeeds(speeds, easySpeed(this.count, speeds.map((x) => x[0])));
    } else this.transport.setSpeeds();
    for (const x of this.halves) {
      x.gantt.least = this.count;
      x.slack = this.tick ?? 0;
      x.gantt.byTime(clock === "time" ? total : 0);
    }
    for (const c of this.charts) c.retheme();
  }

  /** The step of run i at a position of the clock. */
  stepOf(i, position) {
    const m = this.models[i];
    if (position < 0) return -1;
    if (this.clock === "steps") return Math.min(position, m.length - 1);
    return m.stepAtTime((position + 1) * this.tick);
  }

  positionOf(i, step) {
    if (this.clock === "steps") return step;
    return Math.max(0, Math.ceil(this.models[i].s.end[step] / this.tick - 1e-9) - 1);
  }

  curve(i, series) {
    const key = `${i} ${series}`;
    if (!this.curves.has(key)) {
      const values = this.models[i].s[series];
      this.curves.set(key, Array.from({ length: this.count }, (_, k) => values[this.stepOf(i, k)] ?? 0));
    }
    return this.curves.get(key);
  }

  lead(k, series) {
    const d = this.curve(1, series)[k] - this.curve(0, series)[k];
    if (!d) return this.t("compare.even");
    return this.t("compare.lead", { name: this.names[d > 0 ? 1 : 0], n: number(Math.abs(d)) });
  }

  where(at) {
    if (at < 0) return this.t("step.before");
    if (this.clock === "steps" || !this.seconds) return this.t("step.of", { now: at + 1, n: this.count });
    return moment(this.models[0], (at + 1) * this.tick);
  }

  hover(id, e, words) {
    const lit = id === null || id < 0 ? null : id;
    if (id === null) this.tip.hide();
    else if (words && e) this.tip.show([].concat(words), e);
    for (const x of this.halves) {
      if (x.lit === lit) continue;
      x.lit = lit;
      x.draw(x.at);
    }
  }

  relayout() {
    const width = this.root.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    this.root.dataset.width = width < 640 ? "s" : width < 980 ? "m" : "l";
    for (const x of this.halves) x.layout();
    const wide = this.charts[0].canvas.parentElement.clientWidth - 26;
    for (const c of this.charts) c.layout(wide, 110);
    this.draw();
  }

  draw() {
    const at = this.transport.at;
    const now = this.clock === "time" && at >= 0 ? (at + 1) * this.tick : undefined;
    this.halves.forEach((x, i) => x.draw(this.stepOf(i, at), now));
    for (const c of this.charts) c.draw(at);
  }

  retheme() {
    for (const x of this.halves) {
      x.gantt.retheme();
      x.pool.retheme();
    }
    for (const c of this.charts) c.retheme();
    this.draw();
  }

  destroy() {
    this.transport.pause();
    this.resize.disconnect();
    this.offTheme();
    this.root.remove();
  }
}

export async function mountCompare(el, a, b, options) {
  const [x, y] = await Promise.all([unpack(a), unpack(b)]);
  return new CompareView(el, new TraceModel(x), new TraceModel(y), options);
}

export default {
  async render({ model, el }) {
    const view = await mountCompare(el, model.get("_trace_a"), model.get("_trace_b"), model.get("_options"));
    return () => view.destroy();
  },
};
