// Small things every view needs: making nodes, words, numbers, and the colours of the current theme.

/* global I18N -- the table static/i18n.json, put in front of this file by widgets/_assets.py */

/** Make an element: h("div.cls", {title, onclick, …}, child, …). */
export function h(spec, attrs = {}, ...children) {
  const [tag, ...classes] = spec.split(".");
  const el = document.createElement(tag || "div");
  if (classes.length) el.className = classes.join(" ");
  for (const [k, v] of Object.entries(attrs)) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) el.addEventListener(k.slice(2), v);
    else el.setAttribute(k, v === true ? "" : v);
  }
  el.append(...children.filter((c) => c !== null && c !== undefined));
  return el;
}

/** Write only what changed: a DOM write that changes nothing still costs a style pass. */
export function setText(el, text) {
  if (el._text !== text) el.textContent = el._text = text;
}

export function setClass(el, cls) {
  if (el._cls !== cls) el.className = el._cls = cls;
}

/** The words of a language: t("key", {name: value}). A key that is missing shows itself. */
export function translator(lang) {
  return (key, values = {}) => {
    const entry = I18N[key];
    const text = entry ? (entry[lang] ?? entry.zh) : key;
    return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
  };
}

export function number(x, digits = 1) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return "∞";
  if (Number.isInteger(x)) return x.toLocaleString("en-US");
  return x.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

/** A share, everywhere with one digit behind the point, as minirt's metrics print it. */
export const percent = (x) => (Number.isFinite(x) ? `${(100 * x).toFixed(1)}%` : "–");

export const clamp = (x, lo, hi) => Math.min(hi, Math.max(lo, x));

/** A point in time in the trace's own unit: whole steps, or seconds with three digits that matter. */
export function moment(model, x) {
  if (x === null || x === undefined) return "–";
  if (model.unit === "step") return number(Math.round(x * 100) / 100, 1);
  return x >= 10 ? `${x.toFixed(1)} s` : `${x.toFixed(x >= 1 ? 2 : 3)} s`;
}

export const FONT =
  '"Noto Sans CJK SC","Noto Sans SC","PingFang SC","Microsoft YaHei","WenQuanYi Micro Hei",' +
  "system-ui,-apple-system,sans-serif";

/** The theme as canvases need it: read from CSS, so that JupyterLab's variables decide. */
export function readTheme(el) {
  const css = getComputedStyle(el);
  const v = (name, fallback) => css.getPropertyValue(name).trim() || fallback;
  return {
    bg: v("--mrt-bg", "#ffffff"),
    soft: v("--mrt-soft", "#f3f4f6"),
    fg: v("--mrt-fg", "#1b1f24"),
    dim: v("--mrt-dim", "#5b6470"),
    line: v("--mrt-line", "#d9dee5"),
    accent: v("--mrt-accent", "#1f6feb"),
    blue: v("--mrt-blue", "#0072b2"),
    amber: v("--mrt-amber", "#e69f00"),
    green: v("--mrt-green", "#009e73"),
    red: v("--mrt-red", "#d55e00"),
  };
}

/** Call back when JupyterLab's theme or the system's changes. Returns the way to stop. */
export function onTheme(callback) {
  const seen = new MutationObserver(callback);
  seen.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light"] });
  seen.observe(document.documentElement, { attributes: true, attributeFilter: ["data-mrt-theme"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", callback);
  return () => {
    seen.disconnect();
    media.removeEventListener("change", callback);
  };
}

/** Give a canvas `width` x `height` CSS pixels at the screen's own resolution; returns its 2d context. */
export function sizeCanvas(canvas, width, height) {
  const dpr = Math.min(2, globalThis.devicePixelRatio || 1);
  const w = Math.max(1, Math.round(width * dpr));
  const hgt = Math.max(1, Math.round(height * dpr));
  if (canvas.width !== w || canvas.height !== hgt) {
    canvas.width = w;
    canvas.height = hgt;
    if (canvas.style) {
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  return ctx;
}

/** gzip bytes (a DataView from the kernel, or base64 text in a saved page) to the object inside. */
export async function unpack(data) {
  let bytes = data;
  if (typeof data === "string") bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
