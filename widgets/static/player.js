// The player: four modes over one trace.

import { h, onTheme, setText, translator, unpack } from "./base.js";
import { TraceModel } from "./model.js";
import { DoneMode, MonitorMode, StartMode } from "./modes.js";
import { Stage } from "./stage.js";
import { Transport } from "./transport.js";

const MODES = ["start", "run", "monitor", "done"];

export class PlayerView {
  /** extra: nodes between the head and the stage (the live run's controls); onAbort: lets a row be stopped;
   * makeTransport: another kind of transport. */
  constructor(el, model, { lang = "zh", mode = "start", title = "", speed = null, extra = null, onAbort = null, at_end = false, makeTransport } = {}) {
    const t = (this.t = translator(lang));
    this.model = model;
    this.root = h("div.mrt", { lang: lang === "zh" ? "zh-CN" : "en", "data-mode": mode, "aria-label": t("player") });
    const onSeek = (step) => this.transport.seek(step);
    this.views = {
      start: new StartMode(model, { t, onStart: () => this.begin() }),
      run: new Stage(model, { t, onSeek, onAbort, root: this.root }),
      monitor: new MonitorMode(model, { t, onSeek }),
      done: new DoneMode(model, { t }),
    };
    const make = makeTransport ?? ((o) => new Transport(o));
    this.transport = make({
      t,
      speed,
      count: () => model.length,
      onMove: () => this.draw(),
      label: (at) => this.where(at),
      onPlay: () => this.mode !== "monitor" && this.show("run"),
      onEnd: () => this.tabs.done.classList.add("is-ready"),
    });
    this.tabs = {};
    for (const m of MODES) {
      const attrs = { role: "tab", onclick: () => this.show(m), "data-tab": m };
      this.tabs[m] = h("button.mrt-tab", attrs, t(`mode.${m}`));
    }
    this.name = h("h2", {}, title || t("player.title", { policy: model.meta.policy ?? "" }));
    this.note = h("span.mrt-note");
    const tabs = h("nav.mrt-tabs", { role: "tablist" }, ...Object.values(this.tabs));
    this.stageBox = h("div.mrt-body", {}, ...MODES.map((m) => this.views[m].el));
    this.root.append(h("header.mrt-head", {}, this.name, this.note, tabs), this.transport.el);
    if (extra) this.root.append(extra);
    this.root.append(this.stageBox);
    this.transport.listen(this.root);
    this.root.addEventListener("keydown", (e) => this.point(e));
    el.append(this.root);
    this.resize = new ResizeObserver(() => this.relayout());
    this.resize.observe(this.root);
    this.offTheme = onTheme(() => requestAnimationFrame(() => this.retheme()));
    this.mode = null;
    this.show(mode);
    this.transport.move(model.length && (at_end || mode === "monitor" || mode === "done") ? model.length - 1 : -1);
    this.root.mrtView = this; // for tests and for the curious
  }

  where(at) {
    if (at < 0) return this.t("step.before");
    if (this.model.after(at)) return this.t("step.after");
    return this.t("step.of", { now: this.model.number(at), n: this.model.number(this.model.length - 1) });
  }

  begin() {
    this.show("run");
    this.root.focus({ preventScroll: true }); // the button that was pressed is hidden now, and would take the keys with it
    this.transport.seek(-1);
    this.transport.play();
  }

  /** Up and down: the slot above or below is pointed at, as with the pointer. */
  point(e) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[e.key];
    if (!by || this.mode !== "run" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input,select,textarea")) return;
    this.views.run.pointSlot(by);
    e.preventDefault();
    e.stopPropagation();
  }

  show(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.root.dataset.mode = mode;
    for (const m of MODES) {
      this.tabs[m].setAttribute("aria-selected", m === mode);
      this.views[m].el.hidden = m !== mode;
    }
    if (mode === "done") this.tabs.done.classList.remove("is-ready");
    if (mode === "done" && this.transport.at < 0) this.transport.seek(this.model.length - 1);
    this.relayout(true);
  }

  relayout(force = false) {
    const width = this.root.clientWidth;
    if (!width || (!force && width === this.width)) return;
    this.width = width;
    this.root.dataset.width = width < 560 ? "s" : width < 860 ? "m" : "l";
    this.views[this.mode].layout();
    this.draw();
  }

  draw() {
    if (this.mode) this.views[this.mode].draw(this.transport.at);
  }

  retheme() {
    for (const m of MODES) this.views[m].retheme();
    this.draw();
  }

  destroy() {
    this.transport.pause();
    this.resize.disconnect();
    this.offTheme();
    this.root.remove();
  }
}

export async function mountPlayer(el, data, options) {
  const wait = h("div.mrt.mrt-loading");
  setText(wait, "…");
  el.append(wait);
  const model = new TraceModel(await unpack(data));
  wait.remove();
  return new PlayerView(el, model, options);
}

export default {
  async render({ model, el }) {
    let view = await mountPlayer(el, model.get("_trace"), model.get("_options"));
    const again = async () => {
      const { mode } = view;
      const next = await unpack(model.get("_trace"));
      view.destroy();
      view = new PlayerView(el, new TraceModel(next), { ...model.get("_options"), mode });
      view.transport.seek(view.model.length - 1);
    };
    model.on("change:_trace", again);
    return () => {
      model.off("change:_trace", again);
      view.destroy();
    };
  },
};
