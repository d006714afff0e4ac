// 执行: everything that moves at a step. Used by the player, and by the live run.

import { h, setText } from "./base.js";
import { Gantt } from "./gantt.js";
import { label } from "./palette.js";
import { Events, Kpis, TableView, Tip } from "./panels.js";
import { Pool } from "./pool.js";
import { Queue, Slots } from "./slots.js";

export class Stage {
  constructor(model, { t, onSeek, onAbort, root }) {
    this.model = model;
    this.t = t;
    this.lit = null;
    const onHover = (id, e, words) => this.hover(id, e, words);
    this.kpis = new Kpis(model, { t });
    this.queue = new Queue(model, { t, onHover, onAbort });
    this.slots = new Slots(model, { t, onHover, onAbort });
    this.pool = new Pool(model, { t, onHover: (b, e) => this.hoverBlock(b, e) });
    this.table = new TableView(model, { t, onBlock: (b) => this.pointBlock(b) });
    this.gantt = new Gantt(model, { t, onSeek, onHover });
    this.events = new Events(model, { t, onHover });
    this.tip = new Tip(root);
    this.poolNote = h("span.mrt-note");
    this.queueNote = h("span.mrt-note", { title: t("queue.note") });
    const panel = (cls, key, note, ...rest) =>
      h(`section.mrt-panel.${cls}`, {}, h("h4", {}, h("span", {}, t(key)), note), ...rest);
    this.poolBox = h("div.mrt-pool-box", {}, this.pool.el);
    this.ganttBox = h("div.mrt-gantt-box", {}, this.gantt.el);
    this.el = h(
      "div.mrt-stage",
      {},
      this.kpis.el,
      h(
        "div.mrt-middle",
        {},
        panel("mrt-p-queue", "panel.queue", this.queueNote, this.queue.el),
        panel("mrt-p-slots", "panel.slots", null, this.slots.el),
        panel("mrt-p-pool", "panel.pool", this.poolNote, this.poolBox, this.table.el),
      ),
      h(
        "div.mrt-lower",
        {},
        panel("mrt-p-gantt", "panel.gantt", ganttKey(t), this.ganttBox),
        panel("mrt-p-events", "panel.events", null, this.events.el),
      ),
    );
  }

  layout() {
    this.gantt.layout(this.ganttBox.clientWidth);
    const width = this.poolBox.clientWidth;
    this.pool.layout(width, Math.min(330, Math.max(150, width * 0.75)));
  }

  draw(t) {
    this.at = t;
    const state = this.model.stateAt(t);
    this.kpis.draw(t);
    this.queue.draw(state, t);
    this.slots.draw(state, t, this.lit);
    this.pool.lit = this.gantt.lit = this.lit;
    this.pool.draw(state, t);
    // the table stays after the pointer has left, so that it can be read and pointed at
    if (this.lit !== null) this.last = this.lit;
    const kept = this.last !== undefined && state.live.get(this.last)?.table.length ? this.last : null;
    this.table.draw(state, this.lit ?? kept);
    this.gantt.draw(t);
    this.events.draw(t);
    const waiting = state.waiting.length + state.swapped.size;
    setText(this.queueNote, String(waiting || ""));
    const k = this.model.kpi(t);
    const note = k?.cached ? this.t("pool.cached", { n: k.cached }) : "";
    setText(this.poolNote, this.t("pool.note", { n: this.model.blocks, size: this.model.blockSize }) + note);
  }

  /** A request under the pointer: its blocks, its slot and its bars light up. */
  hover(id, e, words) {
    if (id === null) this.tip.hide();
    else if (words && e) this.tip.show([words], e);
    if (id === this.lit) return;
    this.lit = id;
    this.draw(this.at);
  }

  /** The next (1) or previous (-1) request in a slot; past the last, none. */
  pointSlot(by) {
    const ids = this.at < 0 ? [] : [...this.model.rows[this.at].ids].filter((id) => id >= 0);
    const was = ids.indexOf(this.lit);
    this.hover(ids[was < 0 && by < 0 ? ids.length - 1 : was + by] ?? null);
  }

  hoverBlock(b, e) {
    const state = this.model.stateAt(this.at);
    if (b < 0) {
      this.tip.hide();
      this.lit = null;
      return this.draw(this.at);
    }
    const owner = state.owner[b];
    this.lit = owner >= 0 ? owner : null;
    this.draw(this.at);
    this.tip.show(this.pool.describe(b), e);
  }

  pointBlock(b) {
    this.pool.hot = b ?? -1;
    this.lit = b === undefined ? null : (this.last ?? null);
    this.draw(this.at);
  }

  retheme() {
    this.pool.retheme();
    this.gantt.retheme();
  }
}

export function ganttKey(t) {
  const item = (kind) => h(`i.mrt-k-${kind}`, {}, t(`legend.${kind}`));
  return h("span.mrt-key", {}, ...["prefill", "decode", "wasted", "held"].map(item));
}

export function chip(id) {
  return h("span.mrt-chip", {}, label(id));
}
