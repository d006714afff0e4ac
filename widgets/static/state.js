// What holds after a step: queue, slots, block tables, block owners. Pure: no DOM here.

export class ReplayState {
  constructor(model) {
    this.model = model;
    this.t = -1;
    this.slots = new Int32Array(model.slots).fill(-1);
    this.waiting = [];
    this.swapped = new Map(); // id -> blocks in host memory
    this.live = new Map(); // id -> {slot, computed, table}
    this.generated = new Map(); // id -> answer tokens so far
    this.refs = new Int16Array(model.blocks);
    this.owner = new Int32Array(model.blocks).fill(-1);
    this.last = new Int32Array(model.blocks).fill(-1); // who had the block before
    this.changed = new Int32Array(model.blocks).fill(-9); // the step in which it last changed hands
  }

  clone() {
    const c = Object.create(ReplayState.prototype);
    c.model = this.model;
    c.t = this.t;
    for (const k of ["slots", "waiting", "refs", "owner", "last", "changed"]) c[k] = this[k].slice();
    c.swapped = new Map(this.swapped);
    c.generated = new Map(this.generated);
    c.live = new Map();
    for (const [id, r] of this.live) c.live.set(id, { slot: r.slot, computed: r.computed, table: r.table.slice() });
    return c;
  }

  apply(record, t) {
    this.t = t;
    const left = []; // who is gone for good; one that was preempted comes back
    const paused = new Set();
    for (const [kind, id, data] of record.events ?? []) this.event(kind, id, data ?? {}, left, paused);
    this.move(record, t, left);
    for (const [id, start, n] of record.prefill ?? []) {
      const r = this.live.get(id);
      if (r) r.computed = start + n;
    }
    const emitted = record.emitted ?? [];
    const got = new Map();
    for (const id of emitted) {
      got.set(id, (got.get(id) ?? 0) + 1);
      this.generated.set(id, (this.generated.get(id) ?? 0) + 1);
    }
    for (const id of record.decode ?? []) {
      const r = this.live.get(id);
      if (r) r.computed += Math.max(1, got.get(id) ?? 0);
    }
  }

  event(kind, id, data, left, paused) {
    if (kind === "arrived") this.waiting.push(id);
    else if (kind === "admitted" || kind === "resumed") {
      drop(this.waiting, id);
      this.swapped.delete(id);
      const r = this.live.get(id) ?? { slot: -1, computed: 0, table: [] };
      r.slot = data.slot;
      if (kind === "admitted") r.computed = data.cached ?? 0;
      this.live.set(id, r);
      this.slots[data.slot] = id;
    } else if (kind === "preempted") {
      paused.add(id);
      this.vacate(id);
      if (data.how === "swap") this.swapped.set(id, 0);
      else {
        this.waiting.unshift(id);
        const r = this.live.get(id);
        if (r) r.computed = 0;
      }
    } else if (kind === "released") {
      this.vacate(id);
      if (!paused.has(id)) left.push(id); // a preemption is followed by a release too
    } else if (kind === "moved_in") {
      this.swapped.set(id, data.blocks);
      this.live.set(id, { slot: -1, computed: data.computed, table: [] });
      this.generated.set(id, data.generated);
    } else if (kind === "aborted" || kind === "rejected" || kind === "moved_out") {
      drop(this.waiting, id);
      this.vacate(id);
      this.swapped.delete(id);
      left.push(id);
    }
  }

  vacate(id) {
    const slot = this.slots.indexOf(id);
    if (slot >= 0) this.slots[slot] = -1;
    const r = this.live.get(id);
    if (r) r.slot = -1;
  }

  /** Blocks change hands. The record lists gains and losses apart; a request that is gone after the
   * step lost its blocks after it gained them, one that is still here (preempted, then admitted
   * again) before. */
  move(record, t, left) {
    const gone = new Set(left);
    const touched = new Set();
    const take = (id, blocks) => {
      const r = this.live.get(id) ?? { slot: -1, computed: 0, table: [] };
      this.live.set(id, r);
      for (const b of blocks) {
        r.table.push(b);
        this.refs[b] += 1;
        touched.add(b);
      }
    };
    const give = (id, blocks) => {
      const r = this.live.get(id);
      const lost = new Set(blocks);
      if (r) r.table = r.table.filter((b) => !lost.has(b));
      for (const b of blocks) {
        this.refs[b] -= 1;
        touched.add(b);
      }
    };
    for (const [id, blocks] of record.freed ?? []) if (!gone.has(id)) give(id, blocks);
    for (const [id, blocks] of record.allocated ?? []) take(id, blocks);
    for (const [id, blocks] of record.freed ?? []) if (gone.has(id)) give(id, blocks);
    for (const id of left) {
      const rest = this.live.get(id)?.table; // a live run that is stopped shows its end without a record of blocks
      if (rest?.length) give(id, rest.slice());
      this.live.delete(id);
    }
    for (const [id, n] of record.swapped_out ?? []) this.swapped.set(id, n);
    const latest = new Map();
    for (const [id, blocks] of record.allocated ?? []) if (!gone.has(id)) for (const b of blocks) latest.set(b, id);
    for (const b of touched) {
      const was = this.owner[b];
      let now = this.refs[b] > 0 ? was : -1;
      if (latest.has(b) && this.refs[b] === 1) now = latest.get(b);
      else if (this.refs[b] > 0 && !this.live.get(was)?.table.includes(b)) now = this.holders(b)[0] ?? -1;
      if (now !== was) {
        if (was >= 0) this.last[b] = was;
        this.owner[b] = now;
        this.changed[b] = t;
      } else if (latest.has(b)) this.changed[b] = t;
    }
  }

  /** Every request whose table holds block b. */
  holders(b) {
    const out = [];
    for (const [id, r] of this.live) if (r.table.includes(b)) out.push(id);
    return out;
  }

  /** Tokens in each block, by request: calls visit(block, id, logical index, tokens in it). */
  eachBlock(visit) {
    const size = this.model.blockSize;
    for (const [id, r] of this.live) {
      for (let k = 0; k < r.table.length; k++) {
        visit(r.table[k], id, k, Math.min(size, Math.max(0, r.computed - k * size)));
      }
    }
  }
}

function drop(list, id) {
  const i = list.indexOf(id);
  if (i >= 0) list.splice(i, 1);
}
