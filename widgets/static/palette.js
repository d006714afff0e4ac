// One colour and one pattern a request, the same in every picture.
// Eight hues after Okabe and Ito (2008), told apart under the common kinds of colour blindness; their
// brightness differs too. From the ninth request on a pattern is added, and the id is always written
// where there is room: colour alone never carries a meaning.

const HUES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9b400", "#7a68b3"];
const INKS = ["#ffffff", "#1b1400", "#ffffff", "#1d0714", "#04202f", "#ffffff", "#1a1700", "#ffffff"];

export const hue = (id) => HUES[((id % 8) + 8) % 8];
export const ink = (id) => INKS[((id % 8) + 8) % 8];
/** 0 plain, 1 stripes, 2 dots: which eight of requests an id belongs to. */
export const pattern = (id) => Math.floor(Math.abs(id) / 8) % 3;
export const label = (id) => `R${id}`;

/** Set an element's colours; CSS draws the pattern from data-pattern. */
export function paint(el, id) {
  if (el._painted === id) return;
  el._painted = id;
  el.style.setProperty("--hue", id < 0 ? "transparent" : hue(id));
  el.style.setProperty("--ink", id < 0 ? "inherit" : ink(id));
  el.dataset.pattern = id < 0 ? 0 : pattern(id);
}

/** Fill a rectangle in a request's colour and pattern. */
export function fillOwned(ctx, id, x, y, w, hgt) {
  ctx.fillStyle = hue(id);
  ctx.fillRect(x, y, w, hgt);
  const p = pattern(id);
  if (p === 0 || w < 7 || hgt < 5) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, w, hgt);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = ink(id);
  ctx.globalAlpha = 0.45;
  if (p === 1) stripes(ctx, x, y, w, hgt, 6, 1);
  else for (let i = x + 3; i < x + w; i += 6) for (let j = y + 3; j < y + hgt; j += 6) ctx.fillRect(i - 1, j - 1, 2, 2);
  ctx.restore();
}

/** Diagonal lines over a rectangle (the caller clips and chooses the colour). */
export function stripes(ctx, x, y, w, hgt, gap, width) {
  ctx.lineWidth = width;
  ctx.beginPath();
  for (let d = -hgt + (gap - (x % gap)); d < w; d += gap) {
    ctx.moveTo(x + d, y + hgt);
    ctx.lineTo(x + d + hgt, y);
  }
  ctx.stroke();
}
