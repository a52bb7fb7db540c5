// Figures as text.

export function number(value, digits = 0) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function ms(value) {
  if (value === null || value === undefined) return "–";
  return value >= 9950 ? number(value / 1000, 1) + " s" : number(value, value < 10 ? 1 : 0) + " ms";
}

export function percent(share) {
  return share === null || share === undefined ? "–" : number(100 * share) + " %";
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes >= 1e9) return number(bytes / 1e9, 1) + " GB";
  if (bytes < 1e3) return number(bytes) + " B";
  return bytes >= 1e6 ? number(bytes / 1e6) + " MB" : number(bytes / 1e3, 1) + " kB";
}

// A count of tokens in few characters.
export function short(count) {
  return count >= 10000 ? number(count / 1000) + "k" : number(count);
}
