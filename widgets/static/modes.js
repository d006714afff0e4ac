// The other three modes: 开始 (what is about to run), 监控 (the figures over time), 完成 (the summary).

import { h, moment, number, percent, setText } from "./base.js";
import { Chart } from "./charts.js";
import { label, paint } from "./palette.js";
import { facts, lessons } from "./summary.js";

const MANY = 40; // rows of a table that are worth reading

export class StartMode {
  constructor(model, { t, onStart }) {
    Object.assign(this, { model, t, onStart });
    this.el = h("div.mrt-start");
  }

  draw(at) {
    this.list();
    setText(this.count, this.standing(at));
  }

  /** How many requests there are, and once it runs, where they stand after the step that is shown. */
  standing(at) {
    const { model, t } = this;
    const n = model.requests.size;
    let [ahead, done] = [0, 0];
    for (const life of model.life.values()) {
      if ((life.arrived ?? life.done ?? Infinity) > at) ahead += 1;
      else if ((life.done ?? Infinity) <= at) done += 1;
    }
    if (at < 0) return t("start.requests", { n });
    const state = model.stateAt(at);
    const waiting = state.waiting.length + state.swapped.size;
    const groups = { done, running: n - ahead - done - waiting, waiting, ahead };
    const parts = Object.entries(groups).filter(([, k]) => k > 0);
    const words = parts.map(([key, k]) => t(`start.n_${key}`, { n: k })).join(t("start.and"));
    return t("start.standing", { n, step: model.number(at), parts: words });
  }

  /** Made anew when a request has joined, as in a live run. */
  list() {
    const { model, t, onStart } = this;
    if (this.drawn === model.requests.size) return;
    this.count = h("span");
    this.drawn = model.requests.size;
    const m = model.meta;
    const limits = [
      ["start.slots", model.slots],
      ["start.blocks", m.num_blocks],
      ["start.block_size", m.block_size],
      ["start.max_len", m.max_model_len],
      ["start.clock", m.unit ? t(m.unit === "step" ? "unit.step" : "unit.s") : null],
      ["start.model", m.model],
      ["start.device", m.device],
    ].filter(([, v]) => v !== null && v !== undefined && v !== "");
    for (const [k, v] of Object.entries(m.policy_settings ?? {})) limits.push([k, v]);
    const requests = [...model.requests.values()];
    const longest = Math.max(1, ...requests.map((r) => r.num_prompt + r.max_new_tokens));
    const known = `policy.${m.policy}`;
    const about = t(known) === known ? t("policy.own") : t(known);
    const rows = requests.slice(0, MANY).map((r) => this.row(r, longest, t, model));
    const more = requests.length > MANY ? h("p.mrt-dim", {}, t("start.more", { n: requests.length - MANY })) : null;
    const head = ["start.request", "start.arrival", "start.prompt", "start.length"];
    this.el.replaceChildren(
      h(
        "section.mrt-panel.mrt-policy",
        {},
        h("h3", {}, String(m.policy ?? "?")),
        h("p", {}, about),
        h("div.mrt-pairs", {}, ...limits.map(([k, v]) => h("div.mrt-pair", {}, h("span", { title: t(k) }, t(k)), h("b", {}, show(v, t))))),
        onStart ? h("button.mrt-go", { onclick: onStart }, t("start.go")) : null,
      ),
      h(
        "section.mrt-panel",
        {},
        h("h4", {}, this.count, lengthKey(t)),
        h("div.mrt-scroll", {}, h("table.mrt-table-plain", {}, h("thead", {}, h("tr", {}, ...head.map((k) => h("th", {}, t(k))))), h("tbody", {}, ...rows)), more),
      ),
    );
  }

  row(r, longest, t, model) {
    const chip = h("span.mrt-chip", {}, label(r.id));
    const bar = h("span.mrt-length", {}, h("i.mrt-bar-prompt"), h("i.mrt-bar-answer"));
    bar.style.setProperty("--p", r.num_prompt / longest);
    bar.style.setProperty("--a", r.max_new_tokens / longest);
    const named = r.name && r.name !== label(r.id) ? r.name : null; // a simulated request's name only repeats its chip
    const tr = h(
      "tr",
      {},
      h("td", {}, chip),
      h("td.mrt-num", {}, moment(model, r.arrival)),
      h("td.mrt-words", { title: r.prompt ?? "" }, r.prompt ?? named ?? t("start.tokens", { n: r.num_prompt })),
      h("td.mrt-len", {}, bar, h("span.mrt-dim", {}, `${r.num_prompt} + ${r.max_new_tokens}`)),
    );
    paint(tr, r.id);
    return tr;
  }

  layout() {}
  retheme() {}
}

function lengthKey(t) {
  return h("span.mrt-key", {}, h("i.mrt-k-prefill", {}, t("start.prompt_part")), h("i.mrt-k-decode", {}, t("start.answer_part")));
}

/** A setting's value in words: null is no limit, true and false are on and off. */
function show(v, t) {
  if (v === null || v === undefined) return t("value.none");
  if (typeof v === "boolean") return t(v ? "value.on" : "value.off");
  if (typeof v === "number") return Number.isInteger(v) ? number(v) : String(+v.toPrecision(4));
  return typeof v === "string" ? v : JSON.stringify(v);
}

export class MonitorMode {
  constructor(model, { t, onSeek }) {
    const s = model.s;
    const blue = (theme) => theme.blue;
    const amber = (theme) => theme.amber;
    const grey = (theme) => theme.dim;
    const green = (theme) => theme.green;
    const int = (v) => number(Math.round(v));
    const cell = model.blockSize;
    const rate = () => s.emitted.map((n, i) => n / Math.max(1e-9, s.end[i] - s.time[0]));
    const wasted = ["mrt-k-wasted", t("chart.unused")];
    const chart = (o) => new Chart({ ...o, onSeek });
    this.charts = [
      chart({
        title: t("chart.batch"),
        series: [{ values: () => s.batch, colour: blue, style: "area" }],
        format: int,
        top: () => model.slots,
        reading: (i) => `${s.batch[i]} / ${model.slots} · ${percent(s.batch[i] / model.slots)}`,
      }),
      chart({
        title: t("chart.tokens"),
        legend: [wasted],
        series: [
          { values: () => s.useful, colour: blue, style: "area" },
          { values: () => s.wastedTokens, colour: grey, style: "hatch", stack: true },
        ],
        format: int,
        reading: (i) => number(s.useful[i]) + (s.wastedTokens[i] ? ` + ${number(s.wastedTokens[i])}` : ""),
      }),
      chart({
        title: t("chart.kv"),
        legend: [["mrt-k-line", t("chart.kv_valid")]],
        series: [
          { values: () => s.used.map((n) => n * cell), colour: amber, style: "area" },
          { values: () => s.valid, colour: blue, style: "line", dash: [4, 3] },
        ],
        format: int,
        top: () => model.blocks * cell || 1,
        reading: (i) => `${number(s.used[i] * cell)} · ${t("kpi.fragmentation")} ${percent(model.kpi(i).fragmentation)}`,
      }),
      chart({
        title: t("chart.waiting"),
        series: [{ values: () => s.waiting, colour: (theme) => theme.red, style: "area" }],
        format: int,
        reading: (i) => number(s.waiting[i]),
      }),
      chart({
        title: t("chart.rate"),
        series: [{ values: rate, colour: green, style: "line" }],
        format: (v) => number(v, v < 10 ? 1 : 0),
        reading: (i) => `${number(model.kpi(i).rate, 2)} ` + t(model.unit === "step" ? "unit.per_step" : "unit.per_s"),
      }),
      chart({
        title: t("chart.finished"),
        series: [{ values: () => s.finished, colour: green, style: "area" }],
        format: int,
        top: () => model.requests.size || 1,
        reading: (i) => `${s.finished[i]} / ${model.requests.size}`,
      }),
    ];
    this.el = h("div.mrt-monitor", {}, ...this.charts.map((c) => c.el));
  }

  layout() {
    const width = this.charts[0].canvas.parentElement.clientWidth - 24;
    for (const c of this.charts) c.layout(width);
  }

  draw(t) {
    for (const c of this.charts) c.draw(t);
  }

  retheme() {
    for (const c of this.charts) c.retheme();
  }
}

export class DoneMode {
  constructor(model, { t }) {
    this.model = model;
    this.t = t;
    this.el = h("div.mrt-done");
  }

  layout() {}

  draw() {
    const { model, t } = this;
    if (this.drawn === model.length) return;
    this.drawn = model.length;
    const tiles = facts(model, t).map(([k, v, note]) => h("div.mrt-kpi", {}, h("span", {}, k), h("b", {}, v), h("small", {}, note ?? "")));
    const list = h("ul.mrt-lessons", {}, ...lessons(model, t).map((x) => h("li", {}, x)));
    const head = ["done.request", "done.how", "done.tokens", "done.wait", "done.ttft", "done.tpot", "done.text"];
    const body = [...model.requests.values()].slice(0, MANY).map((r) => this.row(r));
    const table = h("table.mrt-table-plain", {}, h("thead", {}, h("tr", {}, ...head.map((k) => h("th", {}, t(k))))), h("tbody", {}, ...body));
    this.el.replaceChildren(
      h("div.mrt-kpis", {}, ...tiles),
      h("div.mrt-columns", {}, h("section.mrt-panel", {}, h("h4", {}, t("done.notice")), list), h("section.mrt-panel", {}, h("h4", {}, t("done.requests")), h("div.mrt-scroll", {}, table))),
    );
  }

  row(r) {
    const { model, t } = this;
    const life = model.life.get(r.id);
    const unit = (x) => (Number.isFinite(x) ? number(x, model.unit === "step" ? (Number.isInteger(x) ? 0 : 2) : 3) : "–");
    const first = life.firstTime - r.arrival;
    const gap = life.tokens > 1 ? (life.doneTime - life.firstTime) / (life.tokens - 1) : NaN;
    const text = life.error ?? model.text(r.id, life.tokens);
    const wait = life.admitted === undefined ? NaN : model.s.time[life.admitted] - r.arrival;
    const tr = h(
      "tr",
      {},
      h("td", {}, h("span.mrt-chip", {}, label(r.id))),
      h("td", {}, t(`reason.${life.reason ?? "none"}`)),
      h("td.mrt-num", {}, number(life.tokens)),
      h("td.mrt-num", {}, unit(wait)),
      h("td.mrt-num", {}, unit(first)),
      h("td.mrt-num", {}, unit(gap)),
      h("td.mrt-words", { title: text }, text),
    );
    paint(tr, r.id);
    return tr;
  }

  retheme() {}
}
