// A trace that can be looked at in any order. Pure: no DOM here.
// The trace holds only what changes in a step; TraceModel keeps, as steps are appended, the series for
// the charts, one row of slots a step for the timeline, the events, and a full ReplayState each 64
// steps, so that any step is at most 63 small changes away.

import { ReplayState } from "./state.js";

export const KIND = { empty: 0, prefill: 1, decode: 2, wasted: 3, held: 4 };
const KEYFRAME_EVERY = 64;
const SERIES = ["time", "end", "batch", "useful", "wastedTokens", "used", "cached", "valid", "external"];
SERIES.push("waiting", "emitted", "finished", "wastedRows", "rows");

export class TraceModel {
  constructor(payload) {
    this.meta = payload.meta ?? {};
    this.unit = this.meta.unit ?? "step";
    this.slots = this.meta.max_batch_size ?? 1;
    this.blocks = this.meta.num_blocks ?? 0;
    this.blockSize = this.meta.block_size ?? 1;
    this.requests = new Map();
    this.life = new Map();
    this.steps = [];
    this.rows = []; // per step: {ids, kinds}, who sat in each slot while it ran
    this.events = []; // {t, kind, id, data}
    this.eventEnd = []; // per step: how many events there are up to and with it
    this.texts = new Map(); // id -> {full, offsets}
    this.outputs = payload.outputs ?? {};
    this.s = Object.fromEntries(SERIES.map((k) => [k, []]));
    this.head = new ReplayState(this); // after the last step
    this.work = 0; // steps that did something: a static run ends with a record that only gives back slots
    this.top = 0; // blocks from here on were never used
    this.lastToken = -1; // the step in which the last token came out
    this.keyframes = [this.head.clone()]; // keyframes[k]: before step 64 k
    this.cursor = null;
    for (const r of payload.requests ?? []) this.addRequest(r);
    for (const [id, pieces] of Object.entries(payload.pieces ?? {})) this.addPieces(+id, pieces);
    for (const record of payload.steps ?? []) this.append(record);
  }

  get length() {
    return this.steps.length;
  }

  /** The number a reader knows step t by: the first is 1, and what only ends the run is no step of its own. */
  number(t) {
    return t < this.work ? t + 1 : Math.max(1, this.work);
  }

  /** Whether record t only gives back slots once everything is over: what is shown then is no step. */
  after(t) {
    return this.work > 0 && t >= this.work && [...this.life.values()].every((life) => life.done !== undefined);
  }

  addRequest(info) {
    this.requests.set(info.id, info);
    if (!this.life.has(info.id)) this.life.set(info.id, { tokens: 0, preempted: 0, prefilled: 0, wasted: 0 });
  }

  /** from: which token the first piece belongs to; what was there from then on is replaced. */
  addPieces(id, pieces, from = Infinity) {
    const text = this.texts.get(id) ?? { full: "", offsets: [0] };
    if (from < text.offsets.length - 1) {
      text.offsets.length = from + 1;
      text.full = text.full.slice(0, text.offsets[from]);
    }
    for (const piece of pieces) {
      text.full += piece;
      text.offsets.push(text.full.length);
    }
    this.texts.set(id, text);
  }

  /** The text of the first n answer tokens; `tail` keeps only its last characters. */
  text(id, n, tail = Infinity) {
    const text = this.texts.get(id);
    if (!text) return "";
    const end = text.offsets[Math.min(n, text.offsets.length - 1)];
    return text.full.slice(Math.max(0, end - tail), end);
  }

  append(record) {
    const t = this.steps.length;
    if (t > 0 && t % KEYFRAME_EVERY === 0) this.keyframes.push(this.head.clone());
    this.steps.push(record);
    this.rows.push(this.seats(record));
    for (const [kind, id, data] of record.events ?? []) {
      this.events.push({ t, kind, id, data: data ?? {} });
      this.note(t, record, kind, id, data ?? {});
    }
    this.eventEnd.push(this.events.length);
    this.measure(t, record);
    const busy = ["prefill", "decode", "wasted", "emitted", "forwards"].some((k) => record[k]?.length);
    if (busy) this.work = t + 1;
    if (record.emitted?.length) this.lastToken = t;
    for (const [, blocks] of record.allocated ?? []) for (const b of blocks) if (b >= this.top) this.top = b + 1;
    this.head.apply(record, t);
  }

  /** Who sat in each slot while this step ran: one that ended in it still counts, if it was computed. */
  seats(record) {
    const ids = Int32Array.from(this.head.slots);
    const computed = new Map();
    for (const id of record.wasted ?? []) computed.set(id, KIND.wasted);
    for (const id of record.decode ?? []) computed.set(id, KIND.decode);
    for (const row of record.prefill ?? []) computed.set(row[0], KIND.prefill);
    for (const [kind, id, data] of record.events ?? []) {
      if (kind === "admitted" || kind === "resumed") ids[data.slot] = id;
      else if (kind === "released" || kind === "preempted" || kind === "aborted") {
        const slot = ids.indexOf(id);
        if (slot >= 0 && !computed.has(id)) ids[slot] = -1;
      }
    }
    const kinds = new Uint8Array(ids.length);
    for (let i = 0; i < ids.length; i++) if (ids[i] >= 0) kinds[i] = computed.get(ids[i]) ?? KIND.held;
    return { ids, kinds };
  }

  /** Keep the milestones of each request's life, for the tables and the summary. */
  note(t, record, kind, id, data) {
    const life = this.life.get(id);
    if (!life) return;
    const end = record.time + (record.duration ?? 0);
    if (kind === "arrived" || kind === "moved_in") life.arrived ??= t;
    else if (kind === "admitted") {
      life.admitted ??= t;
      life.cached = (life.cached ?? 0) + (data.cached ?? 0);
    } else if (kind === "first_token") {
      life.first ??= t;
      life.firstTime ??= end;
    } else if (kind === "preempted") life.preempted += 1;
    else if (kind === "finished" || kind === "rejected" || kind === "aborted" || kind === "moved_out") {
      life.done = t;
      life.doneTime = end;
      life.reason = kind === "finished" ? data.reason : kind === "moved_out" ? "moved" : kind;
      life.error = data.error;
    } else if (kind === "released") life.released = t;
  }

  measure(t, record) {
    const s = this.s;
    const before = (k) => (t ? s[k][t - 1] : 0);
    const prefill = record.prefill ?? [];
    const decode = record.decode ?? [];
    const wasted = record.wasted ?? [];
    let useful = decode.length;
    for (const [id, , n] of prefill) {
      useful += n;
      const life = this.life.get(id);
      if (life) life.prefilled += n;
    }
    for (const id of wasted) if (this.life.has(id)) this.life.get(id).wasted += 1;
    const emitted = record.emitted ?? [];
    for (const id of emitted) if (this.life.has(id)) this.life.get(id).tokens += 1;
    const computed = (record.forwards ?? []).reduce((sum, f) => sum + f[0], 0);
    s.time.push(record.time);
    s.end.push(record.time + (record.duration ?? 0));
    s.rows.push(prefill.length + decode.length + wasted.length);
    s.batch.push(new Set([...decode, ...prefill.map((r) => r[0])]).size);
    s.useful.push(useful);
    s.wastedTokens.push(Math.max(0, computed - useful));
    s.wastedRows.push(before("wastedRows") + wasted.length);
    s.used.push(record.blocks_used ?? 0);
    s.cached.push(record.blocks_cached ?? 0);
    s.valid.push(record.valid ?? 0);
    s.external.push(record.external ?? 0);
    s.waiting.push(record.waiting ?? 0);
    s.emitted.push(before("emitted") + emitted.length);
    const done = (record.events ?? []).filter((e) => e[0] === "finished").length;
    s.finished.push(before("finished") + done);
  }

  /** The state after step t (-1: before the first). It is one shared object: read it, do not keep it. */
  stateAt(t) {
    let state = this.cursor;
    const key = Math.min(Math.floor((t + 1) / KEYFRAME_EVERY), this.keyframes.length - 1);
    if (!state || state.t > t || state.t < key * KEYFRAME_EVERY - 1) state = this.keyframes[key].clone();
    for (let i = state.t + 1; i <= t; i++) state.apply(this.steps[i], i);
    return (this.cursor = state);
  }

  /** The figures of step t, all looked up. */
  kpi(t) {
    const s = this.s;
    if (t < 0 || !this.length) return null;
    const capacity = s.used[t] * this.blockSize;
    const elapsed = s.end[t] - s.time[0];
    const wasted = s.wastedRows[t] - (t ? s.wastedRows[t - 1] : 0);
    return {
      step: this.number(t),
      batch: s.batch[t],
      occupancy: s.batch[t] / this.slots,
      useful: s.useful[t],
      wasted,
      padding: Math.max(0, s.wastedTokens[t] - wasted),
      used: s.used[t],
      cached: s.cached[t],
      usedShare: this.blocks ? s.used[t] / this.blocks : NaN,
      fragmentation: capacity ? Math.max(0, 1 - s.valid[t] / capacity) : 0,
      waiting: s.waiting[t],
      rate: elapsed > 0 ? s.emitted[t] / elapsed : NaN,
      emitted: s.emitted[t],
      finished: s.finished[t],
      time: s.end[t],
    };
  }

  /** The last step that had ended by `time` (-1: none). */
  stepAtTime(time) {
    const end = this.s.end;
    let lo = 0;
    let hi = end.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (end[mid] <= time + 1e-12) lo = mid + 1;
      else hi = mid;
    }
    return lo - 1;
  }
}
