// Play, pause, step, speed, scrub; and the keyboard. Knows only a number of positions and a callback.

import { clamp, h, setText } from "./base.js";

const SPEEDS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
const WHOLE_S = 25; // how long a whole run should play, as near as the speeds allow
const UNHURRIED = 2; // and a short one no slower than this
const ICONS = {
  first: "M4 3h2v10H4zM14 3v10L7 8z",
  back: "M11 3v10L4 8z",
  play: "M4 2.5v11L13 8z",
  pause: "M4 3h3v10H4zM9 3h3v10H9z",
  next: "M5 3v10l7-5z",
  last: "M10 3h2v10h-2zM2 3v10l7-5z",
};

export function icon(name) {
  const box = document.createElement("span"); // the HTML parser knows SVG's namespace, so no address is needed
  box.className = "mrt-icon";
  box.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  return box;
}

/** Of these speeds (positions a second) the one at which `count` positions play in about 25 s. */
export function easySpeed(count, speeds = SPEEDS.filter((n) => n >= UNHURRIED)) {
  const off = (n) => Math.abs(Math.log((n * WHOLE_S) / Math.max(1, count)));
  return speeds.reduce((best, n) => (off(n) < off(best) ? n : best));
}

export class Transport {
  /** count: () => positions; onMove(position): draw it; label(position): words at the right; speed: null chooses one. */
  constructor({ t, count, onMove, label, speed = null, onEnd, onPlay }) {
    Object.assign(this, { t, count, onMove, label, onEnd, onPlay });
    this.at = -1;
    this.playing = false;
    const button = (name, key, act) => {
      const b = h(`button.mrt-btn.mrt-${name}`, { title: t(key), "aria-label": t(key), onclick: act }, icon(name));
      return b;
    };
    this.playButton = button("play", "key.play", () => this.toggle());
    this.slider = h("input.mrt-scrub", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": t("key.scrub") });
    this.slider.addEventListener("input", () => this.seek(+this.slider.value - 1));
    this.readout = h("output.mrt-readout");
    this.speed = h("select.mrt-speed", { "aria-label": t("key.speed"), title: t("key.speed") });
    this.setSpeeds(undefined, speed ?? undefined);
    this.el = h(
      "div.mrt-transport",
      {},
      button("first", "key.first", () => this.seek(-1)),
      button("back", "key.back", () => this.step(-1)),
      this.playButton,
      button("next", "key.next", () => this.step(1)),
      button("last", "key.last", () => this.seek(this.count() - 1)),
      this.slider,
      this.readout,
      this.speed,
    );
  }

  /** speeds: [[positions a second, words], …]. */
  setSpeeds(speeds = SPEEDS.map((n) => [n, this.t("speed", { n })]), chosen = easySpeed(this.count())) {
    const options = speeds.map(([n, words]) => h("option", { value: n, selected: n === chosen }, words));
    this.speed.replaceChildren(...options);
  }

  seek(t) {
    this.pause();
    this.move(clamp(t, -1, this.count() - 1));
  }

  step(by) {
    this.seek(this.at + by);
  }

  move(t) {
    this.at = t;
    this.slider.max = this.count();
    this.slider.value = t + 1;
    this.slider.style.setProperty("--at", `${(100 * (t + 1)) / Math.max(1, this.count())}%`);
    setText(this.readout, this.label(t));
    this.onMove(t);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  play() {
    if (this.playing || !this.count()) return;
    if (this.at >= this.count() - 1) this.move(-1);
    this.playing = true;
    this.mark();
    this.onPlay?.();
    let due = performance.now();
    const frame = (now) => {
      if (!this.playing) return;
      const each = 1000 / +this.speed.value;
      let t = this.at;
      while (due <= now && t < this.count() - 1) {
        t += 1;
        due += each;
      }
      if (due < now - 500) due = now; // the tab was away: go on from here rather than rush
      if (t !== this.at) this.move(t);
      if (t >= this.count() - 1) {
        this.pause();
        this.onEnd?.();
      } else this.raf = requestAnimationFrame(frame);
    };
    this.raf = requestAnimationFrame(frame);
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this.raf);
    this.mark();
  }

  mark() {
    const key = this.playing ? "key.pause" : "key.play";
    this.playButton.replaceChildren(icon(this.playing ? "pause" : "play"));
    this.playButton.title = this.t(key);
    this.playButton.setAttribute("aria-label", this.t(key));
  }

  /** Space, left, right, home, end, for whoever has the focus inside `root`. */
  listen(root) {
    // JupyterLab reads keys before the page does; this attribute tells it to leave ours alone
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    root.tabIndex = 0;
    let clicked = null; // the button that has the focus because it was clicked, not because it was tabbed to
    root.addEventListener("pointerdown", (e) => (clicked = e.target.closest("button")));
    root.addEventListener("focusout", (e) => e.target === clicked && (clicked = null));
    root.addEventListener("pointerdown", (e) => {
      if (!e.target.closest("input,select,textarea,button")) root.focus({ preventScroll: true });
    });
    root.addEventListener("keydown", (e) => {
      const typing = e.target.closest("input:not([type=range]),textarea,select");
      if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
      const button = e.target.closest("button");
      if (e.key === " " && button && button !== clicked && button !== this.playButton) return; // it is pressed
      const act = {
        " ": () => this.toggle(),
        ArrowLeft: () => this.step(-1),
        ArrowRight: () => this.step(1),
        Home: () => this.seek(-1),
        End: () => this.seek(this.count() - 1),
      }[e.key];
      if (!act) return;
      act();
      e.preventDefault();
      e.stopPropagation();
    });
  }
}
