// Figures, events in words, and the block table of the request under the pointer.

import { h, moment, number, percent, setClass, setText } from "./base.js";
import { label, paint } from "./palette.js";

/** The strip of figures. `only` picks some of them, for narrow places. */
export class Kpis {
  constructor(model, { t, only }) {
    this.model = model;
    this.t = t;
    const all = ["step", "batch", "occupancy", "tokens", "kv", "fragmentation", "waiting", "rate"];
    this.cells = (only ?? all).map((key) => {
      const cell = { key, value: h("b"), note: h("small") };
      cell.el = h("div.mrt-kpi", { "data-kpi": key }, h("span", {}, t(`kpi.${key}`)), cell.value, cell.note);
      return cell;
    });
    this.el = h("div.mrt-kpis", {}, ...this.cells.map((c) => c.el));
  }

  draw(t) {
    const k = this.model.kpi(t);
    for (const cell of this.cells) {
      const [value, note] = k ? this.figure(cell.key, k, t) : ["–", ""];
      setText(cell.value, value);
      setText(cell.note, note);
    }
  }

  figure(key, k, at) {
    const { model, t } = this;
    switch (key) {
      case "step":
        if (model.after(at)) return [t("step.after"), ""];
        return [number(k.step), model.growing ? "" : `/ ${number(model.number(model.length - 1))}`];
      case "batch":
        return [String(k.batch), `/ ${model.slots}`];
      case "occupancy":
        return [percent(k.occupancy), ""];
      case "tokens":
        return [number(k.useful), ["wasted", "padding"].flatMap((x) => (k[x] ? t(`kpi.${x}`, { n: number(k[x]) }) : [])).join(" ")];
      case "kv":
        return [percent(k.usedShare), `${k.used}/${model.blocks}`];
      case "fragmentation":
        return [percent(k.fragmentation), ""];
      case "waiting":
        return [String(k.waiting), ""];
      case "rate":
        return [number(k.rate, k.rate < 10 ? 2 : 1), t(model.unit === "step" ? "unit.per_step" : "unit.per_s")];
      case "finished":
        return [String(k.finished), `/ ${model.requests.size}`];
      case "time":
        return [moment(model, k.time), ""];
      default:
        return ["–", ""];
    }
  }
}

/** What happened, in words, newest first. */
export class Events {
  constructor(model, { t, onHover, rows = 9 }) {
    this.model = model;
    this.t = t;
    this.lines = Array.from({ length: rows }, () => {
      const line = { step: h("span.mrt-when"), who: h("b"), what: h("span"), id: -1 };
      line.el = h("div.mrt-event", {}, line.step, line.who, line.what);
      line.el.addEventListener("pointerenter", (e) => line.id >= 0 && onHover?.(line.id, e));
      line.el.addEventListener("pointerleave", () => onHover?.(null));
      return line;
    });
    this.el = h("div.mrt-events", { role: "log" }, ...this.lines.map((l) => l.el));
  }

  draw(t) {
    const { model } = this;
    const end = t >= 0 ? model.eventEnd[t] : 0;
    let i = end - 1;
    for (const line of this.lines) {
      // "released" only repeats what "finished" said, except where a static batch waits for its last row
      while (i >= 0 && this.isEcho(model.events[i])) i--;
      const ev = i >= 0 ? model.events[i--] : null;
      line.id = ev ? ev.id : -1;
      setClass(line.el, `mrt-event${ev ? (ev.t === t ? " is-now" : "") : " is-none"}${ev ? ` is-${ev.kind}` : ""}`);
      if (!ev) continue;
      paint(line.el, ev.id);
      setText(line.step, String(model.number(ev.t)));
      setText(line.who, label(ev.id));
      setText(line.what, eventWords(ev, this.t));
    }
  }

  isEcho(ev) {
    return ev.kind === "released" && !(this.model.life.get(ev.id)?.done < ev.t);
  }
}

export function eventWords(ev, t) {
  const d = ev.data;
  switch (ev.kind) {
    case "admitted":
      return t("event.admitted", { slot: d.slot }) + (d.cached ? t("event.cached", { n: d.cached }) : "");
    case "finished":
      return t(d.reason === "length" ? "event.finished_length" : "event.finished_stop");
    case "preempted":
      return t(d.how === "swap" ? "event.preempted_swap" : "event.preempted_recompute");
    case "rejected":
    case "aborted":
      return t(`event.${ev.kind}`, { error: d.error ?? "" });
    default:
      return t(`event.${ev.kind}`, { slot: d.slot });
  }
}

/** The block table of one request: logical block to physical block, as the engine holds it. */
export class TableView {
  constructor(model, { t, onBlock }) {
    this.model = model;
    this.t = t;
    this.head = h("div.mrt-table-head");
    this.cells = h("div.mrt-table-cells");
    this.el = h("div.mrt-table", {}, this.head, this.cells);
    this.pool = [];
    this.onBlock = onBlock;
  }

  draw(state, lit) {
    const { t, model } = this;
    const r = lit === null ? null : state.live.get(lit);
    setClass(this.el, `mrt-table${r ? " is-on" : ""}`);
    if (lit === null) return this.empty(t("table.hint"));
    if (!r || !r.table.length) return this.empty(t(state.swapped.has(lit) ? "table.swapped" : "table.none", { r: label(lit) }));
    setText(this.head, t("table.head", { r: label(lit), n: r.table.length, tokens: r.computed }));
    const shown = Math.min(r.table.length, 64);
    while (this.pool.length < shown) {
      const cell = { k: h("small"), b: h("b") };
      cell.el = h("span.mrt-entry", {}, cell.k, cell.b);
      cell.el.addEventListener("pointerenter", () => this.onBlock?.(cell.block));
      cell.el.addEventListener("pointerleave", () => this.onBlock?.());
      this.pool.push(cell);
      this.cells.append(cell.el);
    }
    this.pool.forEach((cell, k) => {
      setClass(cell.el, k < shown ? "mrt-entry" : "mrt-entry is-none");
      if (k >= shown) return;
      cell.block = r.table[k];
      paint(cell.el, lit);
      const fill = Math.min(1, Math.max(0, (r.computed - k * model.blockSize) / model.blockSize));
      cell.el.style.setProperty("--fill", fill.toFixed(3));
      setText(cell.k, String(k));
      setText(cell.b, String(cell.block) + (state.refs[cell.block] > 1 ? ` ×${state.refs[cell.block]}` : ""));
    });
  }

  empty(words) {
    setText(this.head, words);
    for (const cell of this.pool) setClass(cell.el, "mrt-entry is-none");
  }
}

/** A note beside the pointer, inside the widget. */
export class Tip {
  constructor(root) {
    this.root = root;
    this.el = h("div.mrt-tip", { role: "tooltip" });
    root.append(this.el);
  }

  show(lines, e) {
    this.el.replaceChildren(...lines.map((line, i) => h(i ? "div" : "b", {}, line)));
    const box = this.root.getBoundingClientRect();
    this.el.classList.add("is-on");
    const w = this.el.offsetWidth;
    const x = Math.min(e.clientX - box.left + 14, box.width - w - 8);
    this.el.style.left = `${Math.max(4, x)}px`;
    this.el.style.top = `${Math.min(e.clientY - box.top + 16, box.height - this.el.offsetHeight - 6)}px`;
  }

  hide() {
    this.el.classList.remove("is-on");
  }
}
