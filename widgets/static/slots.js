// The slots, one row each, and the waiting queue beside them. Nodes are made once and reused.

import { clamp, h, moment, setClass, setText } from "./base.js";
import { KIND } from "./model.js";
import { label, paint } from "./palette.js";

const NAMES = ["empty", "prefill", "decode", "wasted", "held"];

export class Slots {
  constructor(model, { t, onHover, onAbort }) {
    this.model = model;
    this.t = t;
    this.el = h("div.mrt-slots", { "data-dense": model.slots > 24 ? 2 : model.slots > 10 ? 1 : 0 });
    this.rows = Array.from({ length: model.slots }, (_, i) => this.makeRow(i, onHover, onAbort));
    this.el.append(...this.rows.map((r) => r.el));
    this.top = 0; // first row in sight; rows that are scrolled away are left alone
    this.sight = model.slots > 24 ? 24 : model.slots;
    this.el.addEventListener("scroll", () => {
      this.top = Math.floor(this.el.scrollTop / 21);
      if (this.shown) this.draw(...this.shown);
    });
  }

  makeRow(i, onHover, onAbort) {
    const r = {
      chip: h("span.mrt-chip"),
      tag: h("span.mrt-tag"),
      prompt: h("i.mrt-bar-prompt"),
      answer: h("i.mrt-bar-answer"),
      count: h("span.mrt-count"),
      text: h("bdi"),
      id: -1,
    };
    r.stop = onAbort
      ? h("button.mrt-abort", { title: this.t("live.abort"), onclick: () => r.id >= 0 && onAbort(r.id) }, "×")
      : null;
    const bar = h("span.mrt-bar", {}, r.prompt, r.answer);
    r.said = h("span.mrt-said", {}, h("span.mrt-text", {}, r.text), bar);
    r.el = h("div.mrt-slot", {}, h("span.mrt-no", {}, String(i)), r.chip, r.tag, r.said, r.count, r.stop);
    r.el.addEventListener("pointerenter", (e) => r.id >= 0 && onHover?.(r.id, e));
    r.el.addEventListener("pointerleave", () => onHover?.(null));
    return r;
  }

  /** idle: the clock has gone on since step t and nothing runs; show who still sits there, if anybody. */
  draw(state, t, lit, idle = false) {
    const { model } = this;
    this.shown = [state, t, lit, idle];
    const row = idle ? { ids: state.slots, kinds: state.slots.map(() => KIND.held) } : t >= 0 ? model.rows[t] : null;
    const before = t > 0 && !idle ? model.rows[t - 1] : null;
    const end = Math.min(this.rows.length, this.top + this.sight);
    for (let i = this.top; i < end; i++) {
      const r = this.rows[i];
      const id = row ? row.ids[i] : -1;
      const kind = id >= 0 ? row.kinds[i] : KIND.empty;
      r.id = id;
      const had = before ? before.ids[i] : -1;
      let cls = `mrt-slot is-${NAMES[kind]}`;
      if (id < 0 && had >= 0) cls += " is-freed";
      if (id >= 0 && had !== id) cls += had >= 0 ? " is-new is-handover" : " is-new";
      const done = !idle && id >= 0 && model.life.get(id)?.done === t;
      if (done) cls += " is-leaving";
      if (lit !== null && id === lit) cls += " is-lit";
      setClass(r.el, cls);
      setText(r.tag, id < 0 ? this.t("kind.empty") : done ? this.t("slot.done") : this.t(`kind.${NAMES[kind]}`));
      if (id < 0) {
        setText(r.chip, "");
        setText(r.count, "");
        setText(r.text, "");
        continue;
      }
      paint(r.el, id);
      this.fill(r, id, state, kind, had >= 0 && had !== id ? had : null);
    }
  }

  fill(r, id, state, kind, had) {
    const { model } = this;
    const info = model.requests.get(id);
    const made = state.generated.get(id) ?? 0;
    const live = state.live.get(id);
    const total = Math.max(1, info.num_prompt + info.max_new_tokens);
    const prompt = live ? Math.min(live.computed, info.num_prompt) : info.num_prompt;
    setText(r.chip, label(id));
    setText(r.count, kind === KIND.prefill && made === 0 ? `${prompt}/${info.num_prompt}` : `${made}/${info.max_new_tokens}`);
    const split = info.num_prompt / total;
    clip(r.prompt, 0, clamp(prompt / total, 0, 1));
    clip(r.answer, split, clamp(split + made / total, 0, 1));
    const text = model.text(id, made, 90).replace(/\s+/g, " ");
    const asked = info.prompt ? `« ${info.prompt.slice(0, 60).replace(/\s+/g, " ")}` : "";
    const shown = text || (had !== null ? this.t("slot.takes", { r: label(had) }) : asked);
    setText(r.text, shown);
    setClass(r.text, text ? "" : "is-prompt");
    setClass(r.said, shown ? "mrt-said" : "mrt-said is-silent");
  }
}

/** Show a bar from one share of its width to another. Clipping moves no box, so it costs no layout. */
function clip(bar, from, to) {
  const shape = `inset(0 ${(100 * (1 - to)).toFixed(2)}% 0 ${(100 * from).toFixed(2)}%)`;
  if (bar._shape !== shape) bar.style.clipPath = bar._shape = shape;
}

export class Queue {
  constructor(model, { t, onHover, onAbort }) {
    this.model = model;
    this.t = t;
    this.shown = Math.max(7, Math.min(12, model.slots + 2));
    this.list = h("div.mrt-queue-list");
    this.more = h("div.mrt-more");
    this.ahead = h("div.mrt-more.mrt-ahead", { title: t("queue.ahead_order") });
    this.coming = h("div.mrt-coming");
    this.rest = h("div.mrt-more");
    this.el = h("div.mrt-queue", {}, this.list, this.more, this.ahead, this.coming, this.rest);
    this.chips = Array.from({ length: this.shown }, () => this.makeChip(this.list, onHover, onAbort));
    this.chips[0].el.append(h("small.mrt-first", { title: t("queue.order") }, t("queue.head")));
    this.next = Array.from({ length: this.shown }, () => this.makeChip(this.coming, onHover));
    this.order = [];
  }

  makeChip(parent, onHover, onAbort) {
    const c = { id: -1, name: h("b"), what: h("span") };
    const stop = onAbort
      ? h("button.mrt-abort", { title: this.t("live.abort"), onclick: () => c.id >= 0 && onAbort(c.id) }, "×")
      : null;
    c.el = h("div.mrt-wait", {}, c.name, c.what, stop);
    c.el.addEventListener("pointerenter", (e) => c.id >= 0 && onHover?.(c.id, e));
    c.el.addEventListener("pointerleave", () => onHover?.(null));
    parent.append(c.el);
    return c;
  }

  draw(state, t) {
    const { model } = this;
    const priority = (id) => model.requests.get(id)?.priority ?? 0;
    const swapped = [...state.swapped.keys()];
    const waiting = swapped.concat(state.waiting.slice().sort((a, b) => priority(a) - priority(b)));
    this.chips.forEach((c, i) => {
      const id = waiting[i] ?? -1;
      c.id = id;
      const life = model.life.get(id);
      const fresh = id >= 0 && life?.arrived === t;
      const back = id >= 0 && (state.generated.get(id) ?? 0) > 0;
      const cls = id < 0 ? " is-none" : (fresh ? " is-fresh" : "") + (back ? " is-back" : "");
      setClass(c.el, `mrt-wait${cls}`);
      if (id < 0) return;
      paint(c.el, id);
      setText(c.name, label(id));
      const info = model.requests.get(id);
      const key = state.swapped.has(id) ? "queue.swapped" : back ? "queue.back" : "queue.item";
      setText(c.what, this.t(key, { p: info.num_prompt, m: info.max_new_tokens }));
    });
    const rest = waiting.length - this.shown;
    setText(this.more, rest > 0 ? this.t("queue.more", { n: rest }) : waiting.length ? "" : this.t(t < 0 ? "queue.not_yet" : "queue.empty"));
    this.upcoming(t, Math.max(3, this.shown - waiting.length));
  }

  /** The next arrivals, faint, behind the queue that they will join, in the order in which they come. */
  upcoming(t, room) {
    const { model } = this;
    if (this.order.length !== model.requests.size) {
      this.order = [...model.requests.values()].sort((a, b) => a.arrival - b.arrival || a.id - b.id);
    }
    const ahead = [];
    for (const r of this.order) {
      const life = model.life.get(r.id) ?? {};
      const at = life.arrived ?? life.done ?? Infinity;
      if (at > t) ahead.push(r);
    }
    setText(this.ahead, ahead.length ? this.t("queue.ahead", { n: ahead.length }) : "");
    const rest = ahead.length - room;
    setText(this.rest, rest > 0 ? this.t("queue.more", { n: rest }) : "");
    this.next.forEach((c, i) => {
      const r = i < room ? ahead[i] : null;
      c.id = r ? r.id : -1;
      setClass(c.el, r ? "mrt-wait is-coming" : "mrt-wait is-none");
      if (!r) return;
      paint(c.el, r.id);
      setText(c.name, label(r.id));
      setText(c.what, this.t("queue.coming", { at: moment(model, r.arrival) }));
    });
  }
}
