// LiveRun: the player over a trace that is still growing, with the engine's controls.
// While the newest step is shown ("live"), play, pause and step command the engine itself; further back
// they only move through what has already happened.

import { h, setText, translator, unpack } from "./base.js";
import { TraceModel } from "./model.js";
import { PlayerView } from "./player.js";
import { Transport, icon } from "./transport.js";

class LiveTransport extends Transport {
  constructor(options) {
    super(options);
    this.live = true;
    this.status = "running";
    this.command = options.command;
    this.onMark = options.onMark;
    const speeds = [1, 2, 4, 8, 16, 32].map((n) => [n, this.t("speed", { n })]);
    this.setSpeeds([...speeds, [1000, this.t("live.full")]], options.speed);
    this.speed.addEventListener("change", () => this.command({ type: "pace", value: this.pace() }));
  }

  pace() {
    const n = +this.speed.value;
    return n >= 1000 ? 0 : 1 / n;
  }

  toggle() {
    if (this.live) this.command({ type: this.status === "running" ? "pause" : "resume" });
    else super.toggle();
  }

  step(by) {
    if (by > 0 && this.at >= this.count() - 1) {
      this.live = true;
      this.command({ type: "step" });
    } else super.step(by);
  }

  move(t) {
    this.live = t >= this.count() - 1;
    super.move(t);
    this.mark();
  }

  mark() {
    super.mark();
    if (this.live && this.status === "running") this.playButton.replaceChildren(icon("pause"));
    this.onMark?.(this.live);
  }
}

class LiveView {
  constructor(el, model) {
    this.model = model;
    this.el = el;
    this.options = model.get("_options");
    this.t = translator(this.options.lang);
    this.id = Math.random().toString(36).slice(2);
    this.wait = h("div.mrt.mrt-loading", {}, "…");
    el.append(this.wait);
    // one after the other: unpacking takes a moment, and steps that arrive meanwhile must wait for it
    this.turn = Promise.resolve();
    this.onMessage = (content, buffers) => (this.turn = this.turn.then(() => this.receive(content, buffers)));
    this.onStatus = () => this.showStatus();
    model.on("msg:custom", this.onMessage);
    model.on("change:status change:error change:notice", this.onStatus);
    this.hello();
    // a saved notebook has no kernel to answer: show what was saved with it
    const saved = model.get("_trace");
    if (saved?.byteLength) setTimeout(() => this.view || this.load(saved), 1500);
    else setTimeout(() => this.view || setText(this.wait, this.t("live.offline")), 8000);
  }

  send(content) {
    try {
      this.model.send({ ...content, view: this.id });
    } catch {
      // the kernel is gone; what is drawn stays
    }
  }

  hello() {
    this.send({ type: "hello" });
  }

  async receive(content, buffers) {
    if (content.type === "all" && content.view === this.id) await this.load(buffers[0]);
    else if (content.type === "grow" && this.trace) this.grow(content);
  }

  async load(packed) {
    const data = await unpack(packed);
    this.wait.remove();
    const at = this.view?.transport.live === false ? this.view.transport.at : null;
    const mode = this.view?.mode ?? "run";
    this.view?.destroy();
    const trace = (this.trace = new TraceModel(data));
    trace.growing = true;
    this.view = new PlayerView(this.el, trace, {
      lang: this.options.lang,
      title: this.options.title || this.t("live.title", { policy: trace.meta.policy ?? "" }),
      mode,
      speed: this.options.speed,
      extra: this.controls(),
      onAbort: (id) => this.send({ type: "abort", id }),
      makeTransport: (o) => new LiveTransport({ ...o, command: (c) => this.send(c), onMark: (live) => this.mark(live) }),
    });
    this.view.transport.seek(at ?? trace.length - 1);
    this.showStatus();
  }

  controls() {
    const { t } = this;
    this.state = h("span.mrt-state");
    this.follow = h("button.mrt-action.mrt-plain", { onclick: () => this.goLive() }, t("live.follow"));
    this.stop = h("button.mrt-action.mrt-plain.mrt-stop", { onclick: () => this.send({ type: "stop" }) }, t("live.stop"));
    this.prompt = h("input.mrt-prompt", { type: "text", placeholder: t("live.prompt"), "aria-label": t("live.prompt") });
    this.tokens = h("input", { type: "number", min: 1, max: 4096, value: this.options.max_new_tokens, title: t("live.tokens"), "aria-label": t("live.tokens") });
    this.insert = h("button.mrt-action.mrt-insert", { onclick: () => this.add() }, t("live.insert"));
    this.prompt.addEventListener("keydown", (e) => e.key === "Enter" && !e.isComposing && this.add());
    this.error = h("div.mrt-error", { role: "alert", hidden: true });
    return h("div.mrt-live", {}, this.state, this.follow, this.prompt, this.tokens, this.insert, this.stop, this.error);
  }

  goLive() {
    this.view.root.focus({ preventScroll: true }); // the button is about to go, and would take the keys with it
    this.view.transport.seek(this.trace.length - 1);
  }

  add() {
    const prompt = this.prompt.value.trim();
    if (!prompt) return this.prompt.focus();
    this.send({ type: "add", prompt, max_new_tokens: Math.max(1, Math.round(+this.tokens.value) || 1) });
    this.prompt.value = "";
  }

  /** New steps. What is already here is skipped; a gap (messages lost) is mended by asking for everything. */
  grow({ first, steps, requests, pieces }) {
    const { trace, view } = this;
    if (first > trace.length) return this.hello();
    const live = view.transport.live;
    for (const r of requests) trace.addRequest(r);
    for (const [id, [from, list]] of Object.entries(pieces)) trace.addPieces(+id, list, from);
    for (const step of steps.slice(trace.length - first)) trace.append(step);
    if (live) view.transport.move(trace.length - 1);
    else view.transport.move(view.transport.at);
  }

  mark(live) {
    this.follow.hidden = live;
    const status = this.model.get("status");
    this.state.dataset.status = live ? status : "review";
    setText(this.state, this.t(live ? `live.${status}` : "live.review"));
  }

  showStatus() {
    if (!this.view) return;
    const { model } = this;
    const status = model.get("status");
    const transport = this.view.transport;
    transport.status = status;
    transport.mark();
    const over = status === "stopped" || status === "failed";
    for (const b of [this.stop, this.insert, this.prompt, this.tokens]) b.disabled = over;
    const words = model.get("error") || model.get("notice");
    this.error.hidden = !words;
    setText(this.error, words);
    this.view.tabs.done.classList.toggle("is-ready", status === "done");
  }

  destroy() {
    this.model.off("msg:custom", this.onMessage);
    this.model.off("change:status change:error change:notice", this.onStatus);
    this.send({ type: "gone" });
    this.view?.destroy();
  }
}

export default {
  render({ model, el }) {
    const view = new LiveView(el, model);
    return () => view.destroy();
  },
};
