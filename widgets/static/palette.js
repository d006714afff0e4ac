// One colour and one pattern a request, the same in every picture; and how each kind of work is drawn.
// Eight hues after Okabe and Ito (2008), told apart under the common kinds of colour blindness; their
// brightness differs too. From the ninth request on a mark is added (lines along the bar, or dots), and the
// id is always written where there is room: colour alone never carries a meaning. Diagonal hatching is kept
// for the kind of work: prefill in the request's colours, a wasted row in grey.

/* global PALETTE -- static/palette.json, put in front of this file by widgets/_assets.py; _still.py draws by it too */

export const hue = (id) => PALETTE.hues[((id % 8) + 8) % 8];
export const ink = (id) => PALETTE.inks[((id % 8) + 8) % 8];
/** 0 plain, 1 lines, 2 dots: which eight of requests an id belongs to. */
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
  const { gap, alpha } = PALETTE.mark;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, w, hgt);
  ctx.clip();
  ctx.fillStyle = ink(id);
  ctx.globalAlpha = alpha;
  for (let j = y + gap / 2; j < y + hgt; j += gap) {
    if (p === 1) ctx.fillRect(x, j - 0.5, w, 1);
    else for (let i = x + gap / 2; i < x + w; i += gap) ctx.fillRect(i - 1, j - 1, 2, 2);
  }
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
