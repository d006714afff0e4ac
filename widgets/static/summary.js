// What a run came to, in figures and in sentences, worked out from the trace alone. No DOM here.

import { number, percent } from "./base.js";

const mean = (xs) => (xs.length ? xs.reduce((a, b) => a + b, 0) / xs.length : NaN);

export function quantile(xs, q) {
  if (!xs.length) return NaN;
  const a = xs.slice().sort((x, y) => x - y);
  const i = (a.length - 1) * q;
  const lo = Math.floor(i);
  return a[lo] + (a[Math.min(lo + 1, a.length - 1)] - a[lo]) * (i - lo);
}

export function summary(model) {
  const n = model.length;
  const s = model.s;
  const lives = [...model.life.entries()].map(([id, life]) => ({ id, ...life, arrival: model.requests.get(id).arrival }));
  const started = lives.filter((x) => x.firstTime !== undefined);
  const ttft = started.map((x) => x.firstTime - x.arrival);
  const tpot = started.filter((x) => x.tokens > 1 && x.doneTime !== undefined);
  const gaps = tpot.map((x) => (x.doneTime - x.firstTime) / (x.tokens - 1));
  // as minirt.metrics counts: occupancy over the steps that gave a token, fragmentation over time
  const busy = s.rows.map((r, i) => i).filter((i) => s.emitted[i] > (i ? s.emitted[i - 1] : 0));
  const held = s.used.map((n, i) => i).filter((i) => s.used[i] > 0);
  const elapsed = n ? s.end[n - 1] - s.time[0] : 0;
  const tokens = n ? s.emitted[n - 1] : 0;
  const kpis = busy.map((i) => model.kpi(i));
  const spans = held.map((i) => s.end[i] - s.time[i]);
  const span = spans.reduce((a, b) => a + b, 0);
  return {
    steps: busy.length,
    elapsed,
    tokens,
    rate: tokens / elapsed,
    occupancy: mean(kpis.map((k) => k.occupancy)),
    fragmentation: held.reduce((a, i, j) => a + model.kpi(i).fragmentation * spans[j], 0) / span,
    ttft: { mean: mean(ttft), p50: quantile(ttft, 0.5), p99: quantile(ttft, 0.99) },
    tpot: { mean: mean(gaps), p99: quantile(gaps, 0.99) },
    wastedRows: n ? s.wastedRows[n - 1] : 0,
    usefulRows: s.batch.reduce((a, b) => a + b, 0),
    wastedTokens: s.wastedTokens.reduce((a, b) => a + b, 0),
    usefulTokens: s.useful.reduce((a, b) => a + b, 0),
    finished: lives.filter((x) => x.reason === "stop" || x.reason === "length").length,
    rejected: lives.filter((x) => x.reason === "rejected").length,
    aborted: lives.filter((x) => x.reason === "aborted").length,
    preemptions: lives.reduce((a, x) => a + x.preempted, 0),
    cached: lives.reduce((a, x) => a + (x.cached ?? 0), 0),
    again: lives.reduce((a, x) => a + Math.max(0, x.prefilled + (x.cached ?? 0) - model.requests.get(x.id).num_prompt), 0),
    longest: Math.max(0, ...lives.map((x) => x.tokens)),
    handovers: handovers(model),
    stall: stalls(model),
  };
}

/** How often a slot went to another request, how often in the step right after the one before ended (or left), and
 * the steps that lay between: a slot may be held long after its request's end. */
function handovers(model) {
  const gaps = [];
  for (let slot = 0; slot < model.slots; slot++) {
    let id = -1;
    let left = -1;
    for (let t = 0; t < model.length; t++) {
      const now = model.rows[t].ids[slot];
      if (now >= 0 && now !== id) {
        if (id >= 0) {
          const done = model.life.get(id)?.done ?? left;
          gaps.push(t - Math.min(done, left) - 1);
        }
        id = now;
      }
      if (now >= 0) left = t;
    }
  }
  return { all: gaps.length, next: gaps.filter((n) => n === 0).length, mean: mean(gaps), most: Math.max(0, ...gaps) };
}

/** Steps in which prompts were computed while requests that could decode did not. */
function stalls(model) {
  let n = 0;
  model.steps.forEach((r, t) => {
    if (r.prefill?.length && !r.decode?.length && model.rows[t].kinds.includes(4)) n += 1;
  });
  return n;
}

/** The tiles: [name, value, note]. */
export function facts(model, t) {
  const x = summary(model);
  const per = t(model.unit === "step" ? "unit.per_step" : "unit.per_s");
  const in_ = (v) => number(v, model.unit === "step" ? 1 : 3) + (model.unit === "step" ? "" : " s");
  return [
    [t("fact.steps"), number(x.steps), model.unit === "step" ? "" : in_(x.elapsed)],
    [t("fact.finished"), number(x.finished), `/ ${model.requests.size}`],
    [t("fact.tokens"), number(x.tokens), ""],
    [t("fact.rate"), number(x.rate, 2), per],
    [t("fact.occupancy"), percent(x.occupancy), ""],
    [t("fact.fragmentation"), percent(x.fragmentation), ""],
    [t("fact.ttft"), in_(x.ttft.mean), `p99 ${in_(x.ttft.p99)}`],
    [t("fact.tpot"), in_(x.tpot.mean), `p99 ${in_(x.tpot.p99)}`],
  ];
}

/** What to notice, as sentences; only what really happened in this run. */
export function lessons(model, t) {
  const x = summary(model);
  const out = [];
  const bound = Math.max(x.longest, Math.ceil(x.tokens / model.slots));
  out.push(t("lesson.bound", { steps: number(x.steps), bound: number(bound), longest: number(x.longest) }));
  if (x.wastedRows) {
    const all = x.wastedRows + x.usefulRows;
    out.push(t("lesson.wasted", { n: number(x.wastedRows), all: number(all), share: percent(x.wastedRows / all) }));
  } else out.push(t("lesson.no_waste"));
  const padding = x.wastedTokens - x.wastedRows;
  if (padding > 0) out.push(t("lesson.padding", { n: number(padding) }));
  const { all: turns, next, mean: gap, most } = x.handovers;
  if (turns) {
    const words = t("lesson.handover", { all: number(turns), next: number(next) });
    out.push(words + (most ? t("lesson.handover_gap", { mean: number(gap, 1), most: number(most) }) : ""));
  }
  if (x.stall) out.push(t("lesson.stall", { n: number(x.stall) }));
  if (x.preemptions) out.push(t("lesson.preempted", { n: x.preemptions, again: number(Math.max(0, x.again)) }));
  if (x.cached) out.push(t("lesson.cached", { n: number(x.cached) }));
  if (x.rejected) out.push(t("lesson.rejected", { n: x.rejected }));
  if (x.aborted) out.push(t("lesson.aborted", { n: x.aborted }));
  out.push(t("lesson.fragmentation", { share: percent(x.fragmentation), size: model.blockSize }));
  return out;
}
